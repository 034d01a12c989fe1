// The forward in e4m3: what is served, and random problems. The suites that run on every target have it too.

#include <gtest/gtest.h>

#include "backend_test.h"
#include "device_problem.h"
#include "fp8_scales.h"
#include "layouts.h"
#include "random_batches.h"
#include "random_problem.h"

namespace tandem::gpu_test {
namespace {

using optest::Domain;
using optest::Problem;
using optest::RandomCase;
using optest::Runner;
using optest::Target;

Target fp8_target(int64_t headdim, bool in_slots) {
  Target target;
  target.backend = TANDEM_BACKEND_SM90;
  target.dtype = TANDEM_E4M3;
  target.headdim = target.headdim_v = headdim;
  target.v_in_slots = in_slots;
  return target;
}

// Skipped with the backend's sentence where it has none; TANDEM_REQUIRE_FP8=1 makes that a fault.
class ServedFp8 : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(ServedFp8, EveryHeadDim) {
  const auto& [headdim, in_slots] = GetParam();
  const std::string refusal = fp8_refusal(fp8_target(headdim, in_slots));
  if (refusal.empty()) return;
  EXPECT_FALSE(fp8_is_required()) << refusal;
  GTEST_SKIP() << refusal;
}
INSTANTIATE_TEST_SUITE_P(Each, ServedFp8,
                         testing::Combine(testing::Values(16, 64, 96, 128, 192, 256), testing::Bool()));

class RandomFp8 : public RandomBatches {
 protected:
  void SetUp() override {
    in_slots_ = GetParam() % 2 == 0;
    const std::string refusal = fp8_refusal(fp8_target(64, in_slots_));
    if (!refusal.empty() && !fp8_is_required()) GTEST_SKIP() << refusal;
  }
  bool in_slots_ = false;
};

TEST_P(RandomFp8, OfManyTiles) {
  run_batch(60, [&](uint64_t n) {
    Problem problem = optest::random_problem_of_many_tiles(random_seed(), n);
    problem.dtype = TANDEM_E4M3;
    problem.headdim = (problem.headdim + 15) / 16 * 16;
    problem.headdim_v = (problem.headdim_v + 15) / 16 * 16;
    problem.v_transposed = in_slots_;
    vary_fp8(problem, n);
    const uint64_t dice = hash_of(random_seed(), n);
    return check_on_device(problem, {n, kPatterns[dice % 6], false}, dice % 3 == 0);
  });
}

// Problems for the CPU, in host memory between guard bands: refused in words if the kernels do not take them.
TEST_P(RandomFp8, OfEveryLayout) {
  run_batch(60, [&](uint64_t n) -> std::string {
    RandomCase test = optest::random_case(random_seed() + 7, n, Domain::kFp8);
    test.problem.checked = false;
    test.problem.v_transposed = in_slots_;
    Runner runner(test.problem, test.inputs, TANDEM_BACKEND_SM90);
    const tandem_status status = runner.forward();
    const std::string sentence = tandem_last_error();
    const std::string what = describe(test.problem) + "\n" + describe_layouts(test.problem);
    if (!runner.damage().empty()) return runner.damage() + "; " + what;
    const bool expected = is_in_fp8_domain(test.problem) && is_forward_addressable(test.problem);
    if (status == TANDEM_UNSUPPORTED) return expected || sentence.empty() ? "refused: " + sentence + "; " + what : "";
    if (status != TANDEM_OK) return sentence + "; " + what;
    if (!is_in_fp8_domain(test.problem)) return "not refused: " + what;
    const std::string fault = check_problem(test.problem, test.inputs, TANDEM_BACKEND_SM90, false);
    return fault.empty() ? "" : fault + "; " + what;
  });
}

INSTANTIATE_TEST_SUITE_P(Batch, RandomFp8, testing::Range(0, kBatches));

// In one process at a time, as Beyond31Bits.
TEST(Fp8Beyond31Bits, ElementsOfEachTensor) {
  for (const bool in_slots : {false, true}) {
    const Target target = fp8_target(128, in_slots);
    const std::string refusal = fp8_refusal(target);
    if (!refusal.empty() && !fp8_is_required()) GTEST_SKIP() << refusal;
    constexpr int64_t kCompared = 3000;
    for (const auto& [seqlen_q, seqlen_k] : {std::pair<int64_t, int64_t>{10496, 128}, {128, 10496}}) {
      DeviceProblem data(fitted(optest::dense_problem(400, seqlen_q, seqlen_k, 4, 4, 1), target), {31});
      ASSERT_EQ(data.run_alone(), TANDEM_OK) << tandem_last_error() << "; " << data.text();
      EXPECT_EQ(data.fault(kCompared), "");
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_test
