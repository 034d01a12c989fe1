// Sizes beyond what 16 and 32 bits count, in every instance: what is compared is a sample with the last row in it.

#include <gtest/gtest.h>

#include "device_problem.h"
#include "op_targets.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_problem;
using optest::packed_problem;
using optest::Problem;
using optest::Target;

constexpr int64_t k31Bits = int64_t{1} << 31;
constexpr int64_t kCompared = 3000;

void expect_right(const Problem& problem, bool head_major = false) {
  size_t free_bytes = 0, all_bytes = 0;
  TANDEM_CHECK_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  try {
    DeviceProblem data(problem, {31}, head_major);
    ASSERT_EQ(data.run_alone(), TANDEM_OK) << tandem_last_error() << "; " << data.text();
    EXPECT_EQ(data.fault(kCompared), "");
  } catch (const std::exception& error) {
    FAIL() << error.what() << "; " << free_bytes << " bytes of device memory were free; "
           << describe(problem).substr(0, 500);
  }
}

class Counts : public testing::TestWithParam<Target> {
 protected:
  Problem dense(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k) const {
    return fitted(dense_problem(batch, seqlen_q, seqlen_k, nheads_q, nheads_k, 1), GetParam());
  }
};

TEST_P(Counts, C43_SeventyThousandOfABatch) {
  expect_right(dense(70000, 1, 1, 1, 1));
  Problem problem = dense(70000, 3, 5, 2, 1);
  problem.causal = true;
  expect_right(problem);
}

TEST_P(Counts, C43_EightyThousandSequences) {
  std::vector<int32_t> lengths(80000, 16);
  for (size_t n = 0; n < lengths.size(); n += 3) lengths[n] = static_cast<int32_t>(n % 31);
  Problem problem = fitted(packed_problem(lengths, std::vector<int32_t>(80000, 16), 1, 1, 1), GetParam());
  problem.causal = true;
  expect_right(problem);
}

// More heads, rows and keys than a grid axis of 16 bits holds.
TEST_P(Counts, Contract11_NoAxisHasALimitOfItsOwn) {
  expect_right(dense(1, 2, 3, 71280, 35640));
  expect_right(dense(1, 2, 3, 71280, 71280));
  expect_right(dense(1, 100000, 70, 1, 1));
  expect_right(dense(1, 70, 100000, 1, 1));
}

INSTANTIATE_TEST_SUITE_P(Each, Counts, testing::ValuesIn(instance_targets()), target_name);

// In one process at a time: TANDEM_GPU_QUICK and the shards of tools/gpu_check.sh leave these to one run of their own.
TEST(Beyond31Bits, C41_Queries) {
  expect_right(dense_problem(400, 10496, 128, 4, 4, 128, TANDEM_BF16));
}

TEST(Beyond31Bits, C42_HeadMajor) {
  expect_right(dense_problem(1600, 729, 729, 16, 16, 72, TANDEM_BF16), true);
  expect_right(dense_problem(1600, 729, 729, 16, 16, 120, TANDEM_FP16), true);
}

// Elements of one sequence; the last rows of the buffer are a short one's.
TEST(Beyond31Bits, C45_Packed) {
  const int32_t rows = static_cast<int32_t>(k31Bits / (128 * 64)) + 100;
  Problem queries = packed_problem({rows, 33}, {300, 77}, 128, 128, 64, TANDEM_BF16);
  queries.causal = queries.top_left = true;  // all but 300 rows see all keys
  expect_right(queries);
  Problem keys = packed_problem({70, 33}, {rows, 77}, 128, 128, 64, TANDEM_FP16);
  expect_right(keys);
  Problem wide =
      packed_problem({130, 33}, {static_cast<int32_t>(k31Bits / (64 * 256)) + 100, 77}, 64, 64, 256, TANDEM_BF16);
  wide.has_window = true;
  wide.window_left = 5000;
  expect_right(wide);
}

TEST(Beyond31Bits, Contract10_OffsetsAre64Bit) {
  for (const auto& [headdim, headdim_v] : {std::pair<int64_t, int64_t>{96, 96}, {192, 128}, {192, 192}}) {
    Problem problem = dense_problem(3, k31Bits / (2 * 64 * 96) + 50, 400, 64, 64, headdim, TANDEM_BF16);
    problem.headdim_v = headdim_v;
    expect_right(problem);
  }
}

}  // namespace
}  // namespace tandem::gpu_test
