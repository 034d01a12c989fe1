// The tests' own oracle against finite differences, and the reference backend against that oracle: two
// implementations that share no code, and derivatives that share no formula.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "compare.h"
#include "dense_attention.h"
#include "runner.h"

namespace tandem::optest {
namespace {

// sum(dout * out) + sum(dlse * lse) over finite LSEs: the function whose gradients the backward gives.
long double loss(const Problem& problem, const Inputs& inputs) {
  const Results results = dense_attention<long double>(problem, inputs, false);
  long double sum = 0;
  for (size_t n = 0; n < results.out.size(); ++n) sum += static_cast<long double>(inputs.dout[n]) * results.out[n];
  for (size_t n = 0; n < results.lse.size(); ++n) {
    if (problem.with_dlse && std::isfinite(results.lse[n])) {
      sum += static_cast<long double>(inputs.dlse[n]) * results.lse[n];
    }
  }
  return sum;
}

// Central differences of the loss in every element of `values`, a member of problem or inputs.
void expect_gradient(const char* name, const std::vector<double>& gradient, std::vector<double>& values,
                     const std::function<long double()>& loss_now) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ(gradient.size(), values.size());
  for (size_t n = 0; n < values.size(); ++n) {
    const double value = values[n];
    values[n] = value + kStep;
    const long double above = loss_now();
    values[n] = value - kStep;
    const long double below = loss_now();
    values[n] = value;
    const double difference = static_cast<double>((above - below) / (2 * kStep));
    ASSERT_NEAR(gradient[n], difference, 1e-8 * std::max(1.0, std::fabs(difference))) << name << "[" << n << "]";
  }
}

void expect_oracle_differentiates(Problem problem, uint64_t seed) {
  SCOPED_TRACE(describe(problem));
  Inputs inputs = random_inputs(problem, seed, Poison::kNone);
  const Results results = dense_attention<long double>(problem, inputs, true);
  const auto loss_now = [&] { return loss(problem, inputs); };
  expect_gradient("dq", results.dq, inputs.q, loss_now);
  expect_gradient("dk", results.dk, inputs.k, loss_now);
  expect_gradient("dv", results.dv, inputs.v, loss_now);
  expect_gradient("dsink", results.dsink, problem.sink, loss_now);
  EXPECT_EQ(check_problem(problem, inputs, TANDEM_BACKEND_REFERENCE), "");
}

Problem tiny() {
  Problem problem = dense_problem(2, 4, 5, 4, 2, 3, TANDEM_FP64);
  problem.headdim_v = 2;
  return problem;
}

TEST(Oracle, PlainGradients) {
  expect_oracle_differentiates(tiny(), 1);
}

TEST(Oracle, GradientThroughLse) {
  Problem problem = tiny();
  problem.with_dlse = true;
  expect_oracle_differentiates(problem, 2);
}

TEST(Oracle, SinkSoftcapAndEmptyRows) {
  Problem problem = tiny();
  problem.with_dlse = true;
  problem.sink = {0.5, -1, 2, 0};
  problem.softcap = 1.5;
  problem.softmax_scale = 1.25;
  problem.lo = Intervals{false, true, {0, 1, 2, 5, 0, 0, 0, 0, 4, 3, 2, 1, 0, 9, -3, 2}};
  problem.hi = Intervals{true, false, {5, 3, 2, 5, 9, 4, -1, 2}};
  expect_oracle_differentiates(problem, 3);
}

TEST(Oracle, PackedCausalWithGaps) {
  Problem problem = packed_problem({3, 0, 4, 2}, {5, 3, 2, 4}, 2, 1, 3, TANDEM_FP64);
  problem.causal = true;
  problem.with_dlse = true;
  problem.sink = {-0.5, 1};
  problem.seqused_q = {2, 0, 4, 1};
  problem.seqused_k = {5, 1, 2, 0};
  expect_oracle_differentiates(problem, 4);
}

TEST(Oracle, WindowsAndChunks) {
  for (bool top_left : {false, true}) {
    Problem problem = tiny();
    problem.top_left = top_left;
    problem.has_window = true;
    problem.window_left = 1;
    problem.window_right = 1;
    expect_oracle_differentiates(problem, 5);
    problem.attention_chunk = 2;
    problem.causal = true;
    expect_oracle_differentiates(problem, 6);
  }
}

// Numbers worked out on paper: the oracle is not only consistent, it is right.
TEST(Oracle, KnownValues) {
  Problem problem = dense_problem(1, 1, 2, 1, 1, 1, TANDEM_FP64);
  problem.softmax_scale = 1;
  Inputs inputs = constant_inputs(problem, 1, 0, 0, 1);
  inputs.k = {0, std::log(3.0)};
  inputs.v = {0, 4};
  const Results results = dense_attention<long double>(problem, inputs, true);
  EXPECT_NEAR(results.out[0], 3, 1e-15);
  EXPECT_NEAR(results.lse[0], std::log(4.0), 1e-15);
  EXPECT_NEAR(results.dk[0], -0.75, 1e-15);  // dS, as q = 1
  EXPECT_NEAR(results.dk[1], 0.75, 1e-15);
  EXPECT_NEAR(results.dv[0], 0.25, 1e-15);
  EXPECT_NEAR(results.dv[1], 0.75, 1e-15);
}

}  // namespace
}  // namespace tandem::optest
