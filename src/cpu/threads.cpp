#include "cpu/threads.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define TANDEM_HAS_FORK 1
#endif

namespace tandem {
namespace {

std::atomic<bool> in_forked_child{false};

#ifdef TANDEM_HAS_FORK
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true, std::memory_order_relaxed); });
#endif

}  // namespace

int resolve_num_threads(int requested) {
  if (in_forked_child.load(std::memory_order_relaxed)) return 1;
  return std::clamp(requested > 0 ? requested : omp_get_max_threads(), 1, kMaxThreads);
}

void run_parallel(int num_threads, int64_t count, void (*body)(void* context, int64_t index, int thread),
                  void* context) {
  const int team = static_cast<int>(std::min<int64_t>(num_threads, count));
  if (team <= 1) {
    for (int64_t index = 0; index < count; ++index) body(context, index, 0);
    return;
  }
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (int64_t index = 0; index < count; ++index) body(context, index, omp_get_thread_num());
}

}  // namespace tandem
