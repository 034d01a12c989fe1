// Sums, factors and scores at the ends of what fp32 can express.

#include "backend_test.h"

namespace tandem::optest {
namespace {

class NumericRange : public BackendTest {};
class GradientRange : public BackendTest {};

// Equal scores, equal values: rounding errors have one sign, and a sum in fp32 key by key would be off by 5e-5.
TEST_P(NumericRange, LongSumsInFp32) {
  constexpr double kTolerance = 6e-6;
  const int64_t keys = target().fixed() ? 10000 : 50000;
  const Problem many_keys = dense(1, 1, keys, 1, 1, 1);
  const double value = round_to(many_keys.dtype, 0.1);
  const Results forward_sums = both(many_keys, constant_inputs(many_keys, 1, 0, value, 1));
  EXPECT_NEAR(forward_sums.out[0], value, target().fixed() ? tolerance(value) : kTolerance * value);
  const double lse = std::log(static_cast<double>(keys));
  EXPECT_NEAR(forward_sums.lse[0], lse, 1e-5 * lse);
  if (!gradients()) return;
  const int64_t rows = target().fixed() ? 5000 : 50000;
  const Problem many_rows = dense(1, rows, 1, 1, 1, 1);
  const Results backward_sums = both(many_rows, constant_inputs(many_rows, 0, 1, 1, value));
  const double sum = static_cast<double>(rows) * value;
  EXPECT_NEAR(backward_sums.dv[0], sum, target().fixed() ? tolerance(sum) : kTolerance * sum);
}

// What no fp32 factor can express. The largest softcaps are none, the smallest leave scores of 0; a scale of 1e-42
// makes the scores +-1e-4 of products that are +-1e38.
TEST_P(NumericRange, FactorsBeyondTheRangeOfFp32) {
  Problem problem = dense(1, 1, 2, 1, 1, 1);
  problem.softmax_scale = 1;
  Inputs inputs = constant_inputs(problem, 1, 0, 0, 1);
  const double score = round_to(problem.dtype, std::log(3.0));
  const double mean = 4 * std::exp(score) / (1 + std::exp(score));  // 3, but for the rounding of ln 3
  inputs.q = in_first_column({1}, problem.headdim);
  inputs.k = in_first_column({0, score}, problem.headdim);
  inputs.v = in_first_column({0, 4}, problem.headdim_v);
  // delta has the rounding of O; P, dS and dK have their own.
  const double ds_tolerance = target().fixed() ? ulp(problem.dtype, mean) + tolerance(0.75) : 1e-5;
  for (double softcap : {1e34, 1e39, 1e300, std::numeric_limits<double>::max()}) {
    problem.softcap = softcap;
    const Results results = both(problem, inputs);
    EXPECT_NEAR(results.out[0], mean, std::max(1e-5, tolerance(mean))) << softcap;
    EXPECT_NEAR(results.lse[0], std::log(1 + std::exp(score)), 1.4e-5) << softcap;
    if (!gradients()) continue;
    const double p = std::exp(score) / (1 + std::exp(score));
    expect_near(results.dk, in_first_column({-p * 4 * (1 - p), p * 4 * (1 - p)}, problem.headdim), ds_tolerance);
    expect_near(results.dv, in_all_columns({1 - p, p}, problem.headdim_v), std::max(1e-5, tolerance(0.75)));
  }
  for (double softcap : {1e-40, 1e-300, std::numeric_limits<double>::denorm_min()}) {
    problem.softcap = softcap;
    const Results results = both(problem, inputs);
    EXPECT_NEAR(results.out[0], 2, std::max(1e-5, tolerance(2))) << softcap;
    if (!gradients()) continue;
    expect_near(results.dv, in_all_columns({0.5, 0.5}, problem.headdim_v), std::max(1e-5, tolerance(0.5)));
    for (double dk : results.dk) EXPECT_TRUE(std::isfinite(dk)) << softcap;
  }
  if (problem.dtype == TANDEM_FP16 || problem.dtype == TANDEM_E4M3) return;  // have no such products
  problem.softcap = 0;
  const double large = round_to(problem.dtype, 1e19);
  inputs.q = in_first_column({large}, problem.headdim);
  inputs.k = in_first_column({large, -large}, problem.headdim);
  for (double scale : {1e-42, -1e-42}) {
    problem.softmax_scale = scale;
    const Results results = both(problem, inputs);
    EXPECT_NEAR(results.lse[0], std::log(2.0), lse_tolerance(1)) << scale;
    EXPECT_NEAR(results.out[0], 2 - (scale > 0 ? 4e-4 : -4e-4) / 2, std::max(2e-6, tolerance(2))) << scale;
  }
}

// An LSE of 1e11 is rounded to a multiple of 8192, and P recomputed from it to anything. But never to more than 1.
TEST_P(GradientRange, GradientsOfHugeScoresAreFinite) {
  const Problem problem = dense(1, 5, 7, 1, 1, 32, TANDEM_BF16);
  const double value = problem.dtype == TANDEM_FP16 ? 60000 : 133120;
  const Results results = both(problem, constant_inputs(problem, value, value, value, 1));
  expect_all(results.out, value);
  for (const std::vector<double>* gradient : {&results.dq, &results.dk, &results.dv}) {
    for (double value : *gradient) ASSERT_TRUE(std::isfinite(value));
  }
}

TANDEM_ON_EACH_TARGET(NumericRange);
TANDEM_ON_TARGETS_WHERE(has_gradients, GradientRange);

}  // namespace
}  // namespace tandem::optest
