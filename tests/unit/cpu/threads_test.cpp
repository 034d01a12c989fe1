#include "cpu/threads.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <vector>

namespace tandem {
namespace {

TEST(Threads, ResolveTheRequest) {
  EXPECT_EQ(resolve_num_threads(3), 3);
  EXPECT_EQ(resolve_num_threads(0), omp_get_max_threads());
  EXPECT_EQ(resolve_num_threads(kMaxThreads), kMaxThreads);
  EXPECT_EQ(resolve_num_threads(kMaxThreads + 1), kMaxThreads);
  EXPECT_EQ(resolve_num_threads(std::numeric_limits<int>::max()), kMaxThreads);
}

TEST(Threads, EveryIndexRunsOnce) {
  for (const int threads : {1, 2, 5}) {
    for (const int64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      parallel_for(threads, count, [&](int64_t index, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        ++calls[static_cast<size_t>(index)];
      });
      for (const auto& call : calls) EXPECT_EQ(call.load(), 1);
    }
  }
}

TEST(Threads, OneThreadIsTheCallersOwn) {
  const auto nested = [] { return omp_in_parallel(); };
  parallel_for(1, 10, [&](int64_t, int) { EXPECT_FALSE(nested()); });
}

// A DataLoader worker: the parent has used its team, the child must neither hang nor crash.
TEST(Threads, AForkedChildRunsAlone) {
  std::atomic<int64_t> sum{0};
  parallel_for(2, 100, [&](int64_t index, int) { sum += index; });
  ASSERT_EQ(sum.load(), 4950);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends the child, not the test run
    const int threads = resolve_num_threads(2);
    int64_t total = 0;
    parallel_for(threads, 100, [&](int64_t index, int) { total += index; });
    _exit(threads == 1 && total == 4950 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(resolve_num_threads(2), 2);  // the parent goes on as before
}

}  // namespace
}  // namespace tandem
