// The tests' own oracle against finite differences, and the reference backend against that oracle: two
// implementations that share no code, and derivatives that share no formula.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "compare.h"
#include "dense_attention.h"
#include "float_types.h"
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

// One row and two keys, which have an element of K in common that is so large that in dQ only the rounding errors of dS
// are left of it. `dp_error` is added to dP of the first key.
Results fused_attention(const Problem& problem, const Inputs& inputs, double dp_error) {
  const auto d = static_cast<size_t>(problem.headdim);
  const auto dot = [d](const double* a, const double* b) {
    double sum = 0;
    for (size_t c = 0; c < d; ++c) sum += a[c] * b[c];
    return sum;
  };
  const auto rounded = [&](double value) { return round_to(problem.dtype, value); };
  const double* const k[] = {&inputs.k[0], &inputs.k[d]};
  const double* const v[] = {&inputs.v[0], &inputs.v[d]};
  double s[2], p[2], ds[2];
  for (int j : {0, 1}) s[j] = problem.scale() * dot(inputs.q.data(), k[j]);
  const double largest = std::fmax(s[0], s[1]);
  for (int j : {0, 1}) p[j] = std::exp(s[j] - largest);
  const double sum = p[0] + p[1];
  Results results;
  for (size_t c = 0; c < d; ++c) {
    results.out.push_back(rounded((rounded(p[0]) * v[0][c] + rounded(p[1]) * v[1][c]) / sum));
  }
  const double delta = dot(results.out.data(), inputs.dout.data());
  for (int j : {0, 1}) {
    const double dp = dot(inputs.dout.data(), v[j]) + (j == 0 ? dp_error : 0);
    ds[j] = rounded(p[j] / sum * (dp - delta));
    for (size_t c = 0; c < d; ++c) results.dk.push_back(rounded(problem.scale() * ds[j] * inputs.q[c]));
    for (size_t c = 0; c < d; ++c) results.dv.push_back(rounded(rounded(p[j] / sum) * inputs.dout[c]));
  }
  for (size_t c = 0; c < d; ++c) results.dq.push_back(rounded(problem.scale() * (ds[0] * k[0][c] + ds[1] * k[1][c])));
  results.lse = {largest + std::log(sum)};
  return results;
}

// Plain attention's errors must not be small by luck, nor be so large that anything passes.
TEST(Tolerance, OfGradientsOfTwoKeys) {
  for (const int32_t dtype : {TANDEM_BF16, TANDEM_FP16}) {
    const Problem problem = dense_problem(1, 1, 2, 1, 1, 128, dtype);
    for (uint64_t seed = 1; seed <= 300; ++seed) {
      Inputs inputs = random_inputs(problem, seed);
      inputs.q[0] = 0;
      inputs.k[0] = inputs.k[128] = 3728;
      const Results oracle = dense_attention<double>(problem, inputs, true);
      EXPECT_EQ(compare_with_oracle(problem, inputs, fused_attention(problem, inputs, 0), oracle), "") << seed;
      const double p = oracle.dv[0] / inputs.dout[0];
      if (p < 0.1 || p > 0.9) continue;
      const double error = dtype == TANDEM_BF16 ? 2 : 0.25;  // dP is 11, by and large
      EXPECT_NE(compare_with_oracle(problem, inputs, fused_attention(problem, inputs, error), oracle), "") << seed;
    }
  }
}

// Nothing needs rounding in a row of one key, so that dQ and dK are 0 but for the sums of dP and delta.
TEST(Tolerance, OfGradientsOfOneKey) {
  const Problem problem = dense_problem(1, 1, 1, 1, 1, 128, TANDEM_BF16);
  const Inputs inputs = random_inputs(problem, 1);
  const Results oracle = dense_attention<double>(problem, inputs, true);
  Results results = dense_attention<float>(problem, inputs, true);
  EXPECT_EQ(compare_with_oracle(problem, inputs, results, oracle), "");
  for (size_t c = 0; c < 128; ++c) results.dq[c] += 0x1p-12 * inputs.k[c];
  EXPECT_NE(compare_with_oracle(problem, inputs, results, oracle), "");
}

}  // namespace
}  // namespace tandem::optest
