// The merge kernel on the GPU, against a double loop over the definition.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "cuda_check.h"
#include "merge_case.h"
#include "sm90/merge/launch.h"
#include "sm90/merge/plan.h"

namespace tandem::gpu_test {
namespace {

// Inputs and outputs of a case on the device.
class DeviceMerge {
 public:
  explicit DeviceMerge(const MergeData& data)
      : data_(data),
        out_partial_(data.out_partial().size()),
        lse_partial_(data.lse_partial().size() * sizeof(float)),
        sink_(data.sink().size() * sizeof(float)),
        out_(data.out_bytes()),
        lse_(data.lse_elems() * sizeof(float)) {
    out_partial_.from_host(data.out_partial().data());
    lse_partial_.from_host(data.lse_partial().data());
    sink_.from_host(data.sink().data());
    poison();
  }

  MergeProblem problem() const {
    return data_.problem(
        {out_partial_.as<void>(), lse_partial_.as<void>(), sink_.as<void>(), out_.as<void>(), lse_.as<void>()});
  }
  void poison() const {
    out_.fill(0xff);
    lse_.fill(0xff);
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
  }
  std::string fault() const {
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
    std::vector<uint8_t> out(data_.out_bytes());
    std::vector<float> lse(data_.lse_elems());
    out_.to_host(out.data());
    lse_.to_host(lse.data());
    return data_.fault(out, lse);
  }

 private:
  const MergeData& data_;
  DeviceBuffer out_partial_, lse_partial_, sink_, out_, lse_;
};

void expect_right(const MergeCase& test) {
  const MergeData data(test);
  const DeviceMerge on_device(data);
  ASSERT_TRUE(sm90::merge_supports(on_device.problem()).is_ok());
  const Status status = sm90::launch_merge(on_device.problem());
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(on_device.fault(), "") << test.text();
}

TEST(Merge, CasesOfEveryKind) {
  TANDEM_NEEDS_GPU();
  for (const MergeCase& test : merge_cases()) expect_right(test);
}

// More runs than a grid has threads.
TEST(Merge, ManyRows) {
  TANDEM_NEEDS_GPU();
  MergeCase test;
  test.parts = 4;
  test.rows = 3000;
  test.nheads = 16;
  test.headdim_v = 128;
  test.in = test.out = DType::kBf16;
  expect_right(test);
  test.headdim_v = 99;
  test.nheads = 5;
  expect_right(test);
}

// Seeded configurations; TANDEM_TEST_SEED and TANDEM_TEST_COUNT change which and how many.
TEST(Merge, RandomProblems) {
  TANDEM_NEEDS_GPU();
  const char* seed_text = std::getenv("TANDEM_TEST_SEED");
  const char* count_text = std::getenv("TANDEM_TEST_COUNT");
  const uint64_t first_seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 5000;
  const uint64_t count = count_text != nullptr ? std::strtoull(count_text, nullptr, 10) : 200;
  constexpr DType kTypes[] = {DType::kFp32, DType::kFp16, DType::kBf16};
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
    MergeCase test;
    test.parts = below(9);
    test.batch = 1 + below(3);
    test.rows = 1 + below(60);
    test.nheads = 1 + below(5);
    test.headdim_v = below(2) == 0 ? 8 * (1 + below(32)) : 1 + below(256);
    test.in = kTypes[below(3)];
    test.out = kTypes[below(3)];
    test.sink = below(2) == 0;
    test.wants_lse = below(4) != 0;
    test.padding = below(3) == 0 ? below(20) : 0;
    test.lse_spread = below(2) == 0 ? 1 : 30;
    test.nan_in_lse = below(8) == 0;
    test.seed = seed;
    expect_right(test);
    if (testing::Test::HasFailure()) {
      FAIL() << "again: TANDEM_TEST_SEED=" << seed << " TANDEM_TEST_COUNT=1 gpu_merge_test "
             << "--gtest_filter=Merge.RandomProblems";
    }
  }
}

// On a stream of its own with SMs left free, and again from a graph.
TEST(Merge, StreamsAndGraphs) {
  TANDEM_NEEDS_GPU();
  const MergeData data(MergeCase{});
  const DeviceMerge on_device(data);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  TANDEM_CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MergeProblem problem = on_device.problem();
  problem.exec.stream = stream;
  problem.exec.sm_margin = 100000;  // more than there are: one stays
  ASSERT_TRUE(sm90::prepare_merge().is_ok());
  TANDEM_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_TRUE(sm90::launch_merge(problem).is_ok());
  TANDEM_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  TANDEM_CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < 3; ++replay) {
    on_device.poison();
    TANDEM_CHECK_CUDA(cudaGraphLaunch(executable, stream));
    EXPECT_EQ(on_device.fault(), "");
  }
  TANDEM_CHECK_CUDA(cudaGraphExecDestroy(executable));
  TANDEM_CHECK_CUDA(cudaGraphDestroy(graph));
  TANDEM_CHECK_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace tandem::gpu_test
