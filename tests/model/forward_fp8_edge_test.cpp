// The forward in e4m3 where numbers come to the ends of their ranges.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <vector>

#include "forward/launch.h"
#include "forward/problems.h"

namespace tandem::model {

void PrintTo(const InstanceId& instance, std::ostream* stream) {
  *stream << instance.name();
}

namespace {

using optest::Inputs;
using optest::Problem;

const double kLn2 = std::log(2.0);

class ForwardFp8Edges : public testing::TestWithParam<InstanceId> {
 protected:
  const InstanceId& id() const { return GetParam(); }
  int n() const { return id().block_n(); }
  Problem dense(int64_t seqlen_q, int64_t seqlen_k) const { return dense_problem(id(), seqlen_q, seqlen_k); }
};

std::vector<InstanceId> instances_with_slots() {
  std::vector<InstanceId> instances;
  for (const InstanceId& instance : forward_instances(TANDEM_E4M3)) {
    if (instance.v_in_slots) instances.push_back(instance);
  }
  return instances;
}

INSTANTIATE_TEST_SUITE_P(E4m3, ForwardFp8Edges, testing::ValuesIn(instances_with_slots()),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });

// q . k is `score` of key j for every row.
void set_scores(const Problem& problem, const std::function<double(int64_t)>& score, Inputs& inputs) {
  for (size_t i = 0; i < inputs.q.size(); ++i) inputs.q[i] = i % static_cast<size_t>(problem.headdim) == 0 ? 1 : 0;
  for (int64_t key = 0; key < problem.seqlen_k; ++key) {
    inputs.k[static_cast<size_t>(key * problem.headdim)] = score(key);
  }
}

// All keys but the last block's, which comes first, are so many powers of two above those: each P is in fp32's range,
// but not their sum.
TEST_P(ForwardFp8Edges, SumsOfPAtTheEndOfFp32) {
  for (const double exponent : {112.0, 116.0, 118.0, 119.5, 120.5, 121.0}) {
    Problem problem = dense(3, 3 * n());
    problem.softmax_scale = exponent * kLn2;
    Inputs inputs = optest::random_inputs(problem, 1);
    set_scores(problem, [&](int64_t key) { return key < 2 * n() ? 1 : 0; }, inputs);
    const ForwardRun run = run_forward(problem, inputs, 1, options_for(1));
    EXPECT_EQ(fault_of(problem, inputs, run), "") << exponent;
  }
}

// Exponents that fp32 holds only in steps of 1 to 16: those of a key in the block that comes last are so many above
// those of all keys of the block before.
TEST_P(ForwardFp8Edges, ExponentsInStepsOfFp32) {
  constexpr int kKeys = 128;  // of a scale
  for (const bool masked : {false, true}) {
    for (const double exponent : {0x1p23, 0x1p25, 0x1p27, 0x1.6p27}) {
      for (const double step : {16.0, 32.0}) {
        Problem problem = dense(1, 2 * kKeys);
        problem.softmax_scale = kLn2;
        problem.has_window = masked;
        problem.window_left = 2 * kKeys - 2;
        problem.k_scale = optest::ScaleSet{1, 1, 2, 3, {exponent + step, exponent}};
        Inputs inputs = optest::constant_inputs(problem, 0, 0, 0, 0);
        set_scores(problem, [](int64_t key) { return key == 5 || key >= kKeys ? 1 : 0; }, inputs);
        for (size_t i = 0; i < kKeys * static_cast<size_t>(problem.headdim_v); ++i) inputs.v[i] = 1;
        const ForwardRun run = run_forward(problem, inputs, 1, options_for(1));
        EXPECT_EQ(fault_of(problem, inputs, run), "") << exponent << " and " << step << ", masked " << masked;
      }
    }
  }
}

// Scores below the least of fp32 are -inf there: the rows see keys, but weigh none, as if they saw none [5].
TEST_P(ForwardFp8Edges, ScoresOfMinusInfinity) {
  Problem problem = dense(3, 3 * n());
  problem.k_scale = optest::ScaleSet{1, 1, 1, 1, {-0x1p127}};
  Inputs inputs = optest::constant_inputs(problem, 0, 0, 1, 0);
  set_scores(problem, [](int64_t) { return 448; }, inputs);
  for (const bool causal : {false, true}) {
    problem.causal = causal;
    const ForwardRun run = run_forward(problem, inputs, 1, options_for(1));
    ASSERT_FALSE(run.result.report) << run.result.text();
    for (const double lse : run.outputs.lse) EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
    for (const double out : run.outputs.out) ASSERT_EQ(out, 0);
  }
}

}  // namespace
}  // namespace tandem::model
