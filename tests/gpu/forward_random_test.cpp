// Random problems of everything that the backend takes, and what it refuses.

#include <gtest/gtest.h>

#include "backend_test.h"
#include "device_problem.h"
#include "layouts.h"
#include "property.h"
#include "random_batches.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_problem;
using optest::Domain;
using optest::Layout;
using optest::packed_problem;
using optest::Problem;
using optest::RandomCase;
using optest::Runner;

class RandomProblems : public RandomBatches {};

// Of all layouts, in host memory between guard bands.
TEST_P(RandomProblems, OfEveryLayout) {
  optest::Target target;
  target.backend = TANDEM_BACKEND_SM90;
  target.gradients = false;
  run_batch(60, [&](uint64_t n) { return check_random_case(target, Domain::kTensorCores, random_seed(), n); });
}

// Larger ones, on the device.
TEST_P(RandomProblems, OfManyTiles) {
  run_batch(60, [&](uint64_t n) {
    const Problem problem = optest::random_problem_of_many_tiles(random_seed(), n);
    const uint64_t dice = hash_of(random_seed(), n);
    return check_on_device(problem, {n, kPatterns[dice % 6], dice % 5 == 0}, dice % 3 == 0);
  });
}

// Problems for the CPU: refused in words if they are outside what the kernels take, right otherwise. Misaligned ones
// may be either.
TEST_P(RandomProblems, OfTheCpu) {
  run_batch(150, [&](uint64_t n) -> std::string {
    RandomCase test = optest::random_case(random_seed() + 5, n);
    test.problem.checked = false;
    Runner runner(test.problem, test.inputs, TANDEM_BACKEND_SM90);
    const tandem_status status = runner.forward();
    const std::string sentence = tandem_last_error();
    const std::string what = describe(test.problem) + "\n" + describe_layouts(test.problem);
    if (!runner.damage().empty()) return runner.damage() + "; " + what;
    if (status == TANDEM_UNSUPPORTED) {
      const bool expected = !is_in_domain(test.problem) || !is_forward_addressable(test.problem);
      return expected && !sentence.empty() ? "" : "refused: " + sentence + "; " + what;
    }
    if (status != TANDEM_OK) return sentence + "; " + what;
    if (!is_in_domain(test.problem)) return "not refused: " + what;
    const std::string fault = check_problem(test.problem, test.inputs, TANDEM_BACKEND_SM90, false);
    return fault.empty() ? "" : fault + "; " + what;
  });
}

INSTANTIATE_TEST_SUITE_P(Batch, RandomProblems, testing::Range(0, kBatches));

void expect_refused(const Problem& problem, const char* word) {
  Runner runner(problem, random_inputs(problem, 1), TANDEM_BACKEND_SM90);
  EXPECT_EQ(runner.forward(), TANDEM_UNSUPPORTED) << describe(problem);
  EXPECT_NE(std::string(tandem_last_error()).find(word), std::string::npos) << tandem_last_error();
  EXPECT_EQ(runner.damage(), "");
}

TEST(Refusals, TypesAndHeadDims) {
  expect_refused(dense_problem(1, 4, 5, 2, 1, 64, TANDEM_FP32), "fp32");
  expect_refused(dense_problem(1, 4, 5, 2, 1, 64, TANDEM_FP64), "fp64");
  Problem fp32_results = dense_problem(1, 4, 5, 2, 1, 64, TANDEM_BF16);
  fp32_results.out_dtype = TANDEM_FP32;
  expect_refused(fp32_results, "out");
  for (int64_t headdim : {1, 4, 59, 65, 100, 255}) {
    expect_refused(dense_problem(1, 4, 5, 2, 1, headdim, TANDEM_BF16), "headdim");
    Problem problem = packed_problem({3, 4}, {5, 2}, 2, 1, 64, TANDEM_FP16);
    problem.headdim_v = headdim;
    expect_refused(problem, "headdim_v");
  }
}

TEST(Refusals, C50_WhatTheCopyEngineCannotAddress) {
  for (const char* name : {"q", "k", "v", "out"}) {
    for (bool misaligned : {false, true}) {
      Problem problem = dense_problem(2, 10, 12, 2, 2, 64, TANDEM_BF16);
      Layout& layout = name[0] == 'q'   ? problem.q_layout
                       : name[0] == 'k' ? problem.k_layout
                       : name[0] == 'v' ? problem.v_layout
                                        : problem.out_layout;
      (misaligned ? layout.offset : layout.padding) = 1;
      Runner runner(problem, random_inputs(problem, 1), TANDEM_BACKEND_SM90);
      EXPECT_EQ(runner.forward(), TANDEM_UNSUPPORTED) << name << (misaligned ? " misaligned" : " padded");
      EXPECT_NE(std::string(tandem_last_error()).find(name), std::string::npos) << tandem_last_error();
      EXPECT_EQ(runner.damage(), "");
    }
  }
}

// The kernels count in an int, with some room; contract 11's limit is higher.
TEST(Refusals, MoreRowsThanTheKernelsCount) {
  for (bool of_keys : {false, true}) {
    const int64_t rows = INT32_MAX;
    tandem_forward_params params = {};
    params.struct_size = sizeof params;
    params.exec.device = {TANDEM_CUDA, 0};
    params.exec.backend = TANDEM_BACKEND_SM90;
    const auto tensor = [](int64_t seqlen) {
      return tandem_tensor{nullptr, TANDEM_BF16, 4, {1, seqlen, 1, 64}, {seqlen * 64, 64, 64, 1}};
    };
    params.q = params.out = tensor(of_keys ? 5 : rows);
    params.k = params.v = tensor(of_keys ? rows : 5);
    EXPECT_EQ(tandem_forward_check(&params), TANDEM_UNSUPPORTED);
    EXPECT_NE(std::string(tandem_last_error()).find("rows"), std::string::npos) << tandem_last_error();
  }
}

}  // namespace
}  // namespace tandem::gpu_test
