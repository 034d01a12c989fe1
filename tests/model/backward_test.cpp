// The backward's own sources, run in the model from the first kernel to the last, against attention in double: every
// instance at the edges of its tiles.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "backward/launch.h"
#include "backward/problems.h"
#include "float_types.h"

namespace tandem::model {

void PrintTo(const BackwardId& id, std::ostream* stream) {
  *stream << id.name();
}

namespace {

using optest::Problem;

// dQ's sums have no order, so that another one may round another way.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = std::max(difference, std::fabs(a[i] - b[i]));
  return difference;
}
double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = std::max(result, std::fabs(value));
  return result;
}

class BackwardInstances : public testing::TestWithParam<BackwardId> {
 protected:
  const BackwardId& id() const { return GetParam(); }
  int m() const { return id().tiles().block_m; }
  int n() const { return id().tiles().block_n; }
  Problem dense(int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1) const {
    return dense_problem(id(), seqlen_q, seqlen_k, nheads);
  }

  // Once against the oracle; in another order of events, one of options_for()'s two extremes in turn, dK, dV and dsink
  // keep their bits.
  void expect_right(const Problem& problem, int blocks = 1) {
    const BackwardCase given = backward_case(problem);
    const BackwardRun first = run_backward(given, blocks, options_for(1));
    EXPECT_EQ(fault_of(given, first), "") << describe(problem) << ", blocks " << blocks;
    if (first.result.report) return;
    const uint64_t seed = 2 + ++turn_ % 2;
    const BackwardRun other = run_backward(given, blocks, options_for(seed));
    ASSERT_FALSE(other.result.report) << other.result.text() << "\n" << describe(problem) << ", seed " << seed;
    EXPECT_TRUE(first.gradients.dk == other.gradients.dk && first.gradients.dv == other.gradients.dv &&
                first.gradients.dsink == other.gradients.dsink)
        << describe(problem) << ", seed " << seed;
    EXPECT_LE(largest_difference(first.gradients.dq, other.gradients.dq),
              optest::ulp(problem.dtype, largest(first.gradients.dq)))
        << describe(problem) << ", seed " << seed;
  }

 private:
  uint64_t turn_ = 0;
};

std::string name_of(const testing::TestParamInfo<BackwardId>& info) {
  return info.param.name();
}
INSTANTIATE_TEST_SUITE_P(Bf16, BackwardInstances, testing::ValuesIn(backward_ids(TANDEM_BF16)), name_of);
INSTANTIATE_TEST_SUITE_P(Fp16, BackwardInstances, testing::ValuesIn(backward_ids(TANDEM_FP16)), name_of);

// What does not depend on the element type.
class BackwardRows : public BackwardInstances {};
INSTANTIATE_TEST_SUITE_P(Bf16, BackwardRows, testing::ValuesIn(backward_ids(TANDEM_BF16)), name_of);

// Interval arrays and transformed scores.
class BackwardGeneral : public BackwardInstances {
 protected:
  // Without the softcap, which would be enough for the general instance to be taken.
  Problem plain(int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1) const {
    Problem problem = dense(seqlen_q, seqlen_k, nheads);
    problem.softcap = 0;
    return problem;
  }
};
std::vector<BackwardId> general_ids() {
  std::vector<BackwardId> general;
  for (const BackwardId& some : backward_ids(TANDEM_BF16)) {
    if (some.general) general.push_back(some);
  }
  return general;
}
INSTANTIATE_TEST_SUITE_P(Bf16, BackwardGeneral, testing::ValuesIn(general_ids()), name_of);

TEST_P(BackwardInstances, EdgeLengths) {
  for (const int length : {1, 63, 64, 65, 127, 128, 129}) {
    Problem problem = dense(length, length);
    problem.causal = length % 2 == 0;
    expect_right(problem);
  }
}

TEST_P(BackwardRows, LengthsThatDiffer) {
  const std::pair<int, int> kLengths[] = {{1, 129}, {129, 1}, {65, 127}, {127, 64}, {64, 128}, {0, 130}, {130, 0}};
  for (const auto& [seqlen_q, seqlen_k] : kLengths) {
    Problem problem = dense(seqlen_q, seqlen_k);
    expect_right(problem);
    problem.causal = true;
    problem.top_left = seqlen_q > 64;
    expect_right(problem, 2);
  }
}

// More than twice the stages: every barrier goes through both parities more than once.
TEST_P(BackwardRows, ManySteps) {
  const int steps = 2 * std::max(id().tiles().q_stages, id().tiles().do_stages) + 2;
  Problem problem = dense((steps / 2 - 1) * m() + 9, n() + 20, 2);
  problem.nheads_k = 1;
  expect_right(problem);
  problem.causal = true;
  expect_right(problem);
}

// Drawn from the counter by blocks that run side by side; groups of heads share keys.
TEST_P(BackwardRows, ManyTilesOnSeveralBlocks) {
  Problem problem = dense(m() - 20, n() + 40, 4);
  problem.batch = 2;
  problem.nheads_k = 2;
  problem.with_dlse = true;
  for (const int blocks : {1, 3}) expect_right(problem, blocks);
}

// Keys that no row sees, between and after tiles that have steps.
TEST_P(BackwardRows, TilesWithoutSteps) {
  Problem problem = dense(m() + 9, 5 * n(), 2);
  problem.causal = problem.top_left = true;
  expect_right(problem);
  problem.top_left = false;
  problem.has_window = true;
  problem.window_left = n() / 2;
  expect_right(problem);
}

TEST_P(BackwardRows, Windows) {
  Problem problem = dense(2 * m() + 30, 3 * n() + 10);
  problem.has_window = true;
  problem.window_left = n() + 10;
  problem.window_right = 20;
  expect_right(problem, 2);
  problem.window_left = 1;  // of one key dS would be a difference of two roundings, and nothing else
  problem.window_right = 0;
  problem.top_left = true;
  expect_right(problem);
  problem.has_window = problem.top_left = false;
  problem.attention_chunk = n() - 9;
  expect_right(problem);
}

// Empty sequences, and such without keys or without rows; rows and keys between them, all NaN.
TEST_P(BackwardInstances, PackedWithGaps) {
  Problem problem = packed_problem(id(), {0, 1, m() + 3, 40, 0, 64}, {5, 0, n() + 2, 1, 0, n() - 1}, 2);
  problem.nheads_k = 1;
  problem.causal = id().dtype == TANDEM_BF16;
  expect_right(problem, 2);
}

TEST_P(BackwardRows, SequencesThatUseLess) {
  Problem problem = dense(m() + 3, n() + 3);
  problem.batch = 5;
  problem.seqused_q = {m() + 1, 10, 0, m(), 1};
  problem.seqused_k = {n() + 1, n() + 3, n(), 0, 64};
  problem.with_dlse = true;
  expect_right(problem, 2);
  problem.causal = true;
  expect_right(problem);
}

// Heads of a sink each; with rows that see no key, whose LSE is the sink.
TEST_P(BackwardRows, Sinks) {
  Problem problem = dense(n() + 1, n() - 30, 3);
  problem.causal = true;
  problem.with_dlse = true;
  problem.sink = {-2.5, 4, 0.5};
  expect_right(problem, 2);
}

TEST_P(BackwardRows, SmallerHeadDims) {
  const int headdim = id().tiles().headdim;
  const int headdim_v = id().tiles().headdim_v;
  const std::pair<int, int> kDims[] = {
      {headdim - 24, headdim_v - 8}, {headdim - 8, 8}, {headdim_v < headdim ? headdim - 56 : 8, headdim_v}};
  for (const auto& [qk, v] : kDims) {
    Problem problem = dense(m() + 5, n() + 5, 2);
    problem.headdim = qk;
    problem.headdim_v = v;
    problem.causal = true;
    if (sm90::find_backward_tiles(qk, v, id().general) != id().row) continue;  // a smaller row takes it
    expect_right(problem);
  }
}

TEST_P(BackwardGeneral, ScoreTransforms) {
  Problem problem = plain(m() + 1, n() + 9);
  for (const double scale : {-0.3, 0.0}) {
    problem.softmax_scale = scale;
    expect_right(problem);
  }
  problem.softcap = 1.5;
  problem.softmax_scale = -0.2;
  problem.causal = true;
  expect_right(problem);
}

// Keys between the intervals that nobody sees, rows that see nothing, and whole m_blocks of these.
TEST_P(BackwardGeneral, RowIntervals) {
  Problem problem = plain(2 * m() + 10, 2 * n() + 50, 2);
  problem.nheads_k = 1;
  const int width = n() / 2 + 3;
  set_intervals(problem, [&](int64_t head, int64_t row) -> Interval {
    if (head == 1 && row >= m()) return {5, 5};
    if (row % 5 == 4) return {50, 20};
    const auto document = static_cast<int32_t>(row / 50);
    return {document * n() / 2 - 3, document * n() / 2 - 3 + width};
  });
  expect_right(problem, 2);
  problem.softcap = 2.5;
  problem.hi.reset();
  problem.causal = true;
  expect_right(problem);
}

// Each key head's rows see other keys; what the other head's would see, and only they, holds NaN.
TEST_P(BackwardGeneral, IntervalsThatDifferBetweenKeyHeads) {
  Problem problem = plain(m() + 10, 3 * n(), 2);
  set_intervals(problem, [&](int64_t head, int64_t row) -> Interval {
    const int32_t first = head == 0 ? 0 : n() + n() / 2;
    return {first + static_cast<int32_t>(row % 3), first + n() + 20};
  });
  expect_right(problem, 2);
}

TEST_P(BackwardGeneral, PackedRowIntervals) {
  Problem problem = packed_problem(id(), {m() + 5, 30, 0}, {2 * n() + 3, n(), 4}, 2);
  problem.softcap = 0;
  set_intervals(problem, [&](int64_t head, int64_t row) -> Interval {
    const auto first = static_cast<int32_t>(row / 64 * 40 + head * 10);
    return {first, row % 7 == 0 ? first : first + n() + 20};
  });
  expect_right(problem);
}

// A NaN in a row of dO reaches the keys that the row sees, and changes no bit of another row's dQ [7].
TEST_P(BackwardRows, NanInARow) {
  Problem problem = dense(2 * m(), 2 * n());
  problem.causal = problem.top_left = true;
  const int64_t row = problem.seqlen_q - 1 - m();
  BackwardCase given = backward_case(problem);
  const BackwardRun clean = run_backward(given, 1, options_for(1));
  given.inputs.dout[static_cast<size_t>(row * problem.headdim_v + 3)] = std::nan("");
  const BackwardRun run = run_backward(given, 1, options_for(2));
  ASSERT_FALSE(run.result.report) << run.result.text();
  for (int64_t i = 0; i < problem.seqlen_q; ++i) {
    if (i == row) continue;
    const auto element = static_cast<size_t>(i * problem.headdim);
    EXPECT_EQ(run.gradients.dq[element], clean.gradients.dq[element]) << i;
  }
  EXPECT_TRUE(std::isnan(run.gradients.dv[3]));
  EXPECT_TRUE(std::isnan(run.gradients.dk[0]));
}

TEST(Backward, SameSeedSameRun) {
  const BackwardCase given = backward_case(dense_problem(BackwardId{}, 200, 200, 2));
  const auto run = [&](uint64_t seed) {
    Options options;
    options.seed = seed;
    return run_backward(given, 2, options);
  };
  const BackwardRun first = run(7);
  const BackwardRun again = run(7);
  EXPECT_EQ(first.result.trace_hash, again.result.trace_hash);
  EXPECT_EQ(first.gradients.dq, again.gradients.dq);
  EXPECT_NE(first.result.trace_hash, run(8).result.trace_hash);
}

}  // namespace
}  // namespace tandem::model
