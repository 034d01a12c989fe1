// Gradients of sizes beyond what 16 and 32 bits count: what is compared is a sample with the last sequence in it.

#include "backward_test.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_problem;
using optest::packed_problem;
using optest::Problem;

constexpr int64_t k31Bits = int64_t{1} << 31;
constexpr double kCompared = 2e10;  // multiplications

void expect_right(const Problem& problem, bool head_major = false) {
  EXPECT_EQ(check_backward(problem, {31}, head_major, kCompared), "");
}

class BackwardCounts : public BackwardTest {};

TEST_P(BackwardCounts, C43_SeventyThousandOfABatch) {
  expect_right(dense(70000, 1, 1, 1, 1));
  Problem problem = dense(70000, 3, 5, 2, 1);
  problem.causal = true;
  expect_right(problem);
}

TEST_P(BackwardCounts, C43_EightyThousandSequences) {
  std::vector<int32_t> lengths(80000, 16);
  for (size_t n = 0; n < lengths.size(); n += 3) lengths[n] = static_cast<int32_t>(n % 31);
  Problem problem = packed(lengths, std::vector<int32_t>(80000, 16), 1, 1);
  problem.causal = true;
  expect_right(problem);
}

// More heads, rows and keys than a grid axis of 16 bits holds.
TEST_P(BackwardCounts, Contract11_NoAxisHasALimitOfItsOwn) {
  expect_right(dense(1, 2, 3, 71280, 35640));
  expect_right(dense(1, 2, 3, 71280, 71280));
  expect_right(dense(1, 100000, 70, 1, 1));
  expect_right(dense(1, 70, 100000, 1, 1));
}

INSTANTIATE_TEST_SUITE_P(Each, BackwardCounts, testing::ValuesIn(instance_targets()), target_name);

// In one process at a time: TANDEM_GPU_QUICK and the shards of tools/gpu_check.sh leave these to one run of their own.
class BackwardBeyond31Bits : public testing::Test {
 protected:
  static void expect_right_or_refused(const Problem& problem, bool head_major = false) {
    if (!has_backward(problem)) GTEST_SKIP() << backward_refusal(problem);
    expect_right(problem, head_major);
  }
};

TEST_F(BackwardBeyond31Bits, C40_ManySequencesOfFewRows) {
  expect_right_or_refused(dense_problem(28800, 15, 15, 16, 16, 72, TANDEM_BF16));
}

TEST_F(BackwardBeyond31Bits, C41_Queries) {
  expect_right_or_refused(dense_problem(400, 10496, 128, 4, 4, 128, TANDEM_BF16));
}

TEST_F(BackwardBeyond31Bits, Keys) {
  expect_right_or_refused(dense_problem(400, 128, 10496, 4, 4, 128, TANDEM_FP16), true);
}

TEST_F(BackwardBeyond31Bits, C45_Packed) {
  const int32_t rows = static_cast<int32_t>(k31Bits / (128 * 64)) + 100;
  Problem queries = packed_problem({rows, 33}, {300, 77}, 128, 128, 64, TANDEM_BF16);
  queries.causal = queries.top_left = true;  // all but 300 rows see all keys
  expect_right_or_refused(queries);
}

TEST_F(BackwardBeyond31Bits, C45_PackedKeys) {
  const int32_t keys = static_cast<int32_t>(k31Bits / (128 * 64)) + 100;
  expect_right_or_refused(packed_problem({70, 33}, {keys, 77}, 128, 128, 64, TANDEM_FP16));
}

TEST_F(BackwardBeyond31Bits, C45_PackedWide) {
  const int32_t rows = static_cast<int32_t>(k31Bits / (64 * 256)) + 100;
  Problem wide = packed_problem({rows, 33}, {130, 77}, 64, 64, 256, TANDEM_BF16);
  expect_right_or_refused(wide);
}

}  // namespace
}  // namespace tandem::gpu_test
