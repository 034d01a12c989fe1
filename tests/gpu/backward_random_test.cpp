// Gradients of random problems of everything that the backend takes, and what it refuses.

#include "backend_test.h"
#include "backward_test.h"
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
using optest::Target;

class BackwardRandom : public RandomBatches {
 protected:
  // check(n, problem n) of those problems whose gradients have to be right.
  template <typename Make, typename Check>
  void run_differentiable(uint64_t usual_count, Make make, Check check) {
    uint64_t tested = 0;
    std::string refusal = "no random problem has a backward";
    run_batch(usual_count, [&](uint64_t n) -> std::string {
      const Problem problem = make(n);
      const bool refused =
          problem.deterministic && !backward_is_required(problem, true) && !backward_refusal(problem, true).empty();
      if (refused || !has_backward(problem)) {
        refusal = backward_refusal(problem, problem.deterministic);
        return "";
      }
      ++tested;
      return check(n, problem);
    });
    if (tested == 0) GTEST_SKIP() << refusal;
  }
};

// Of all layouts, in host memory between guard bands.
TEST_P(BackwardRandom, OfEveryLayout) {
  Target target;
  target.backend = TANDEM_BACKEND_SM90;
  run_differentiable(
      40, [](uint64_t n) { return random_case(random_seed() + 10, n, Domain::kTensorCores).problem; },
      [&](uint64_t n, const Problem&) {
        return check_random_case(target, Domain::kTensorCores, random_seed() + 10, n);
      });
}

// Larger ones, on the device.
TEST_P(BackwardRandom, OfManyTiles) {
  run_differentiable(
      60, [](uint64_t n) { return optest::random_problem_of_many_tiles(random_seed() + 11, n); },
      [](uint64_t n, const Problem& problem) {
        const uint64_t dice = hash_of(random_seed(), n);
        return check_backward(problem, {n, kPatterns[dice % 6], dice % 5 == 0}, dice % 3 == 0);
      });
}

// Problems for the CPU: refused in words if they are outside what the kernels take, right otherwise. Those that the
// copy engine cannot address may be either.
TEST_P(BackwardRandom, OfTheCpu) {
  run_batch(60, [&](uint64_t n) -> std::string {
    RandomCase test = optest::random_case(random_seed() + 12, n);
    test.problem.checked = false;
    test.problem.with_lse = true;
    Runner runner(test.problem, test.inputs, TANDEM_BACKEND_SM90);
    if (is_forward_only() || runner.forward() != TANDEM_OK) return "";  // RandomProblems has what the forward refuses
    const tandem_status status = runner.backward();
    const std::string sentence = tandem_last_error();
    const std::string what = describe(test.problem) + "\n" + describe_layouts(test.problem);
    if (!runner.damage().empty()) return runner.damage() + "; " + what;
    if (status == TANDEM_UNSUPPORTED) {
      const bool must_run = is_in_domain(test.problem) && is_backward_addressable(test.problem) &&
                            backward_is_required(test.problem, test.problem.deterministic);
      return must_run || sentence.empty() ? "refused: " + sentence + "; " + what : "";
    }
    if (status != TANDEM_OK) return sentence + "; " + what;
    const std::string fault = check_problem(test.problem, test.inputs, TANDEM_BACKEND_SM90);
    return fault.empty() ? "" : fault + "; " + what;
  });
}

INSTANTIATE_TEST_SUITE_P(Batch, BackwardRandom, testing::Range(0, kBatches));

// The forward with needs_grad refuses what the backward refuses, and nothing else [13].
class BackwardRefusals : public testing::TestWithParam<Target> {};

TEST_P(BackwardRefusals, Contract13_NeedsGradAsksTheBackward) {
  std::vector<Problem> problems = {fitted(dense_problem(2, 5, 7, 4, 2, 1), GetParam()),
                                   fitted(packed_problem({3, 4}, {5, 2}, 2, 1, 1), GetParam())};
  problems.push_back(problems[0]);
  problems.back().attention_chunk = 3;
  problems.push_back(problems[0]);
  problems.back().softcap = 3;
  problems.push_back(problems[0]);
  problems.back().sink.assign(4, 0.0);
  for (const Problem& problem : problems) {
    for (bool deterministic : {false, true}) {
      SCOPED_TRACE(describe(problem));
      const std::string refusal = backward_refusal(problem, deterministic);
      EXPECT_TRUE(refusal.empty() || !backward_is_required(problem, deterministic)) << refusal;
      Problem copy = problem;
      copy.deterministic = deterministic;
      DeviceProblem data(copy);
      EXPECT_EQ(data.run_alone(true) == TANDEM_OK, refusal.empty()) << tandem_last_error() << "; " << refusal;
    }
  }
}

TEST_P(BackwardRefusals, Contract14_AWorkspaceThatIsTooSmall) {
  if (!GetParam().gradients) GTEST_SKIP() << backward_refusal(GetParam());
  const BackwardProblem data(fitted(dense_problem(2, 100, 200, 4, 2, 1), GetParam()));
  if (data.workspace_bytes() == 0) GTEST_SKIP() << "no workspace";
  EXPECT_EQ(data.run_with_less_workspace(), TANDEM_WORKSPACE_TOO_SMALL) << tandem_last_error();
  EXPECT_NE(std::string(tandem_last_error()).find("workspace"), std::string::npos) << tandem_last_error();
}

INSTANTIATE_TEST_SUITE_P(Each, BackwardRefusals, testing::ValuesIn(optest::targets()), target_name);

std::string check_refused_or_right(const Problem& problem, const char* name) {
  const optest::Inputs inputs = random_inputs(problem, 1);
  Runner runner(problem, inputs, TANDEM_BACKEND_SM90);
  if (runner.forward() != TANDEM_OK) return "";
  if (runner.backward() == TANDEM_OK) return check_problem(problem, inputs, TANDEM_BACKEND_SM90);
  const std::string sentence = tandem_last_error();
  return runner.damage().empty() && sentence.find(name) != std::string::npos ? "" : runner.damage() + sentence;
}

// Refused by name, or right.
TEST(BackwardLayouts, C50_WhatTheCopyEngineCannotAddress) {
  const Problem aligned = dense_problem(2, 10, 12, 2, 2, 64, TANDEM_BF16);
  if (!has_backward(aligned)) GTEST_SKIP() << backward_refusal(aligned);
  for (bool misaligned : {false, true}) {
    Problem of_dout = aligned, of_gradients = aligned;
    (misaligned ? of_dout.dout_layout.offset : of_dout.dout_layout.padding) = 1;
    EXPECT_EQ(check_refused_or_right(of_dout, "dout"), "");
    (misaligned ? of_gradients.gradient_layout.offset : of_gradients.gradient_layout.padding) = 1;
    EXPECT_EQ(check_refused_or_right(of_gradients, "d"), "");
  }
}

TEST(BackwardLayouts, TypesThatTheKernelsLack) {
  for (int32_t dtype : {TANDEM_FP32, TANDEM_FP64}) {
    const Problem problem = dense_problem(1, 4, 5, 2, 1, 64, dtype);
    EXPECT_NE(backward_refusal(problem), "") << dtype;
  }
  for (int64_t headdim : {1, 4, 59, 65, 100, 255, 264}) {
    EXPECT_NE(backward_refusal(dense_problem(1, 4, 5, 2, 1, headdim, TANDEM_BF16)), "") << headdim;
  }
}

}  // namespace
}  // namespace tandem::gpu_test
