// The forward's own sources, run in the model, against attention in double: every instance at the edges of its tiles.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "forward/launch.h"
#include "forward/problems.h"

namespace tandem::model {

void PrintTo(const InstanceId& instance, std::ostream* stream) {
  *stream << instance.name();
}

namespace {

using optest::Problem;

constexpr uint64_t kSeeds = 3;

ForwardRun run_case(const Problem& problem, const optest::Inputs& inputs, int blocks, uint64_t seed) {
  return run_forward(problem, inputs, blocks, options_for(seed));
}

// Runs a problem whose unseen keys, and rows of no sequence, hold NaN. No order of events may change a bit.
void expect_right(const Problem& problem, int blocks = 1) {
  const optest::Inputs inputs = optest::random_inputs(problem, 1);
  const ForwardRun first = run_case(problem, inputs, blocks, 1);
  EXPECT_EQ(fault_of(problem, inputs, first), "") << describe(problem) << ", blocks " << blocks;
  if (first.result.report) return;
  for (uint64_t seed = 2; seed <= kSeeds; ++seed) {
    const ForwardRun other = run_case(problem, inputs, blocks, seed);
    ASSERT_FALSE(other.result.report) << other.result.text() << "\n" << describe(problem) << ", seed " << seed;
    EXPECT_TRUE(first.outputs.out == other.outputs.out && first.outputs.lse == other.outputs.lse)
        << describe(problem) << ", seed " << seed;
  }
}

class ForwardInstances : public testing::TestWithParam<InstanceId> {
 protected:
  const InstanceId& id() const { return GetParam(); }
  int m() const { return id().block_m(); }
  int n() const { return id().block_n(); }
  // More than twice the stages: every barrier goes through both parities more than once.
  int many_blocks() const { return 2 * std::max(id().tiles().k_stages, id().tiles().v_stages) + 2; }
  Problem dense(int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1) const {
    return dense_problem(id(), seqlen_q, seqlen_k, nheads);
  }
};

INSTANTIATE_TEST_SUITE_P(Bf16, ForwardInstances, testing::ValuesIn(forward_instances(TANDEM_BF16)),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Fp16, ForwardInstances, testing::ValuesIn(forward_instances(TANDEM_FP16)),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(E4m3, ForwardInstances, testing::ValuesIn(forward_instances(TANDEM_E4M3)),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });

// What does not depend on the element type.
class ForwardRows : public ForwardInstances {};

INSTANTIATE_TEST_SUITE_P(Bf16, ForwardRows, testing::ValuesIn(forward_instances(TANDEM_BF16)),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(E4m3, ForwardRows, testing::ValuesIn(forward_instances(TANDEM_E4M3)),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });

TEST_P(ForwardInstances, EdgeLengths) {
  for (const int length : {1, 63, 64, 65, n() - 1, n(), n() + 1, m() - 1, m(), m() + 1}) {
    Problem problem = dense(length, length);
    expect_right(problem);
    problem.causal = true;
    expect_right(problem);
  }
}

// The first row sees all but the last key block of its tile, and so has no reference before the next one, which all
// rows see. That is no reason for the slow path of the lazy softmax.
TEST_P(ForwardRows, ARowThatSeesNothingOfTheLastBlock) {
  Problem problem = dense(64, 2 * n() + 63);
  problem.causal = true;
  const ForwardRun run = run_case(problem, optest::random_inputs(problem, 1), 1, 1);
  ASSERT_FALSE(run.result.report) << run.result.text();
  EXPECT_EQ(run.result.count(Op::kMma), 0u);
}

TEST_P(ForwardRows, LengthsThatDiffer) {
  const std::pair<int, int> kLengths[] = {{1, 3 * n() + 1}, {2 * m() + 1, 1}, {m() + 2, n() - 1}, {m() + 1, 0}};
  for (const auto& [seqlen_q, seqlen_k] : kLengths) {
    Problem problem = dense(seqlen_q, seqlen_k);
    expect_right(problem);
    problem.causal = true;
    expect_right(problem, 2);
    problem.top_left = true;
    expect_right(problem);
  }
}

TEST_P(ForwardInstances, ManyKeyBlocks) {
  for (const bool causal : {false, true}) {
    Problem problem = dense(m() + 8, many_blocks() * n() + 5);
    problem.causal = causal;
    expect_right(problem, 2);
  }
}

// Several work tiles a block, drawn from the counter by blocks that run side by side; heads share keys.
TEST_P(ForwardRows, ManyTilesOnSeveralBlocks) {
  Problem problem = dense(m() + 20, n() + 40, 4);
  problem.batch = 2;
  problem.nheads_k = 2;
  problem.causal = true;
  for (int blocks = 1; blocks <= 3; ++blocks) expect_right(problem, blocks);
}

TEST_P(ForwardRows, Windows) {
  Problem problem = dense(m() + 70, 4 * n() + 10);
  problem.has_window = true;
  problem.window_left = n() + 10;
  problem.window_right = 20;
  expect_right(problem, 2);
  problem.window_left = 0;
  problem.window_right = 0;
  expect_right(problem);
  problem.has_window = false;
  problem.attention_chunk = n() - 9;
  problem.causal = true;
  expect_right(problem);
}

TEST_P(ForwardInstances, PackedWithGaps) {
  Problem problem = packed_problem(id(), {0, 1, m() + 3, 40, 0, 64, 5}, {5, 0, n() + 2, 2 * n() + 1, 7, n(), 1}, 2);
  expect_right(problem, 2);
  problem.causal = true;
  problem.nheads_k = 1;
  expect_right(problem, 3);
}

TEST_P(ForwardRows, SequencesThatUseLess) {
  Problem problem = dense(m() + 30, 2 * n() + 30);
  problem.batch = 4;
  problem.seqused_q = {m() + 30, 10, 0, m()};
  problem.seqused_k = {n() + 1, 2 * n() + 30, n(), 0};
  expect_right(problem, 2);
  problem.causal = true;
  expect_right(problem);
}

// Intervals with keys between them that nobody sees, and rows that see nothing; a whole tile of such rows too.
TEST_P(ForwardRows, RowIntervals) {
  Problem problem = dense(2 * m() + 10, 3 * n() + 50, 2);
  const int width = n() / 2 + 3;
  set_intervals(problem, [&](int64_t head, int64_t row) -> Interval {
    if (head == 1 && row >= m()) return {5, 5};
    if (row % 5 == 4) return {50, 20};
    const auto document = static_cast<int32_t>(row / 50);
    return {document * n() / 2 - 3, document * n() / 2 - 3 + width};
  });
  expect_right(problem, 2);
  problem.hi.reset();
  problem.causal = true;
  expect_right(problem);
}

// Consumers of one tile that visit blocks far apart, or none, and the next tile otherwise: each skips what the others
// visit, and takes as many turns.
TEST_P(ForwardRows, ConsumersThatSeeDifferentKeys) {
  Problem problem = dense(2 * m(), 4 * n(), 5);
  set_intervals(problem, [&](int64_t head, int64_t row) -> Interval {
    switch ((row / 64 + head) % 5) {
      case 0: return {0, 10};
      case 1: return {3 * n() + 5, 4 * n()};
      case 2: return {0, 0};
      case 3: return {0, 4 * n()};
      default: return {n(), 2 * n() + 3};
    }
  });
  for (int blocks = 1; blocks <= 2; ++blocks) expect_right(problem, blocks);
}

// One consumer is done with a tile after its first block, and waits for the next Q, which comes when the other has
// handed over O of the tile before: it does so under its own first block, one to three further down.
TEST_P(ForwardRows, ConsumersAheadOfEachOther) {
  const Interval all = {0, 4 * n()}, first = {3 * n() + 5, 4 * n()};
  const auto block = [&](int n_block) { return Interval{n_block * n() + 3, n_block * n() + 40}; };
  const std::pair<Interval, Interval> kOfTiles[] = {{all, all},      {block(2), first}, {all, all}, {first, block(2)},
                                                    {all, all},      {block(1), first}, {all, all}, {first, block(1)},
                                                    {all, all},      {block(0), first}, {all, all}, {first, block(0)},
                                                    {block(1), all}, {all, block(1)}};
  Problem problem = dense(m(), 4 * n(), std::size(kOfTiles));
  set_intervals(problem, [&](int64_t head, int64_t row) {
    const auto& [even, odd] = kOfTiles[head];
    return row / 64 % 2 == 0 ? even : odd;
  });
  expect_right(problem);
}

TEST_P(ForwardRows, PackedRowIntervals) {
  Problem problem = packed_problem(id(), {m() + 5, 30}, {2 * n() + 3, n()}, 1);
  set_intervals(problem, [&](int64_t, int64_t row) -> Interval {
    const auto first = static_cast<int32_t>(row / 64 * 40);
    return {first, row % 7 == 0 ? first : first + n() + 20};
  });
  expect_right(problem);
}

TEST_P(ForwardInstances, ScoreTransforms) {
  Problem problem = dense(m() + 1, 2 * n() + 9);
  problem.softcap = 2.5;
  expect_right(problem);
  problem.softcap = 0;
  for (const double scale : {-0.3, 0.0, 1.5}) {
    problem.softmax_scale = scale;
    expect_right(problem);
  }
}

// Heads of a sink each; with rows that see no key, whose LSE is the sink.
TEST_P(ForwardRows, Sinks) {
  Problem problem = dense(m() + 1, n() - 3, 3);
  problem.causal = true;
  problem.sink = {-2.5, 4, -std::numeric_limits<double>::infinity()};
  expect_right(problem, 2);
}

TEST_P(ForwardInstances, SmallerHeadDims) {
  const int headdim = id().tiles().headdim;
  const int headdim_v = id().tiles().headdim_v;
  const int step = id().is_fp8() ? 16 : 8;
  const int smaller = id().row == 0 ? step : headdim == 192 ? 128 + step : headdim - 3 * step;
  const std::pair<int, int> kDims[] = {
      {smaller, headdim == headdim_v ? smaller : 72}, {headdim, step}, {headdim - step, headdim_v}};
  for (const auto& [qk, v] : kDims) {
    Problem problem = dense(m() + 5, 2 * n() + 5, 2);
    problem.headdim = qk;
    problem.headdim_v = v;
    problem.causal = true;
    ASSERT_EQ(sm90::find_forward_tiles(id().is_fp8(), qk, v) == id().row || v == step, true);
    expect_right(problem);
  }
}

// Scores outgrow the references, by so many powers of two a block: exponentials above fp16's range, above fp32's, and
// far above.
TEST_P(ForwardInstances, GrowingScores) {
  for (const double exponent : {18.0, 140.0, 300.0}) {
    const Problem problem = dense(m() + 3, 4 * n());
    optest::Inputs inputs = optest::random_inputs(problem, 1);
    const auto grows = [](int64_t row) { return row % 3 == 0 || (64 <= row && row < 80); };
    grow_scores(problem, id(), grows, exponent, inputs);
    const ForwardRun run = run_case(problem, inputs, 1, 1);
    EXPECT_EQ(fault_of(problem, inputs, run), "") << describe(problem) << ", exponent " << exponent;
    // What e4m3 cannot hold is brought down by a power of two; only what fp32 cannot is computed again.
    EXPECT_EQ(run.result.count(Op::kMma) > 0, id().tiles().lazy && (!id().is_fp8() || exponent > 128));

    // Rows that did not grow have the bits that they have alone [12].
    optest::Inputs calm = inputs;
    grow_scores(problem, id(), [](int64_t) { return false; }, exponent, calm);
    const ForwardRun alone = run_case(problem, calm, 1, 2);
    ASSERT_FALSE(alone.result.report) << alone.result.text();
    EXPECT_EQ(alone.result.count(Op::kMma), 0u);
    for (int64_t row = 0; row < problem.seqlen_q; ++row) {
      if (grows(row)) continue;
      const auto element = static_cast<size_t>(row * problem.headdim_v);
      EXPECT_EQ(run.outputs.lse[static_cast<size_t>(row)], alone.outputs.lse[static_cast<size_t>(row)]) << row;
      EXPECT_EQ(run.outputs.out[element], alone.outputs.out[element]) << row;
    }
  }
}

// A NaN in K makes the rows that see it NaN, LSE too, and changes no bit of the others [7].
TEST_P(ForwardRows, NanInAKey) {
  Problem problem = dense(m() + 40, 3 * n());
  problem.causal = true;
  const int64_t key = problem.seqlen_k - 60;
  optest::Inputs inputs = optest::random_inputs(problem, 1);
  const ForwardRun clean = run_case(problem, inputs, 1, 1);
  inputs.k[static_cast<size_t>(key * problem.headdim + 3)] = std::nan("");
  const ForwardRun run = run_case(problem, inputs, 1, 2);
  ASSERT_FALSE(run.result.report) << run.result.text();
  for (int64_t row = 0; row < problem.seqlen_q; ++row) {
    const double lse = run.outputs.lse[static_cast<size_t>(row)];
    const double out = run.outputs.out[static_cast<size_t>(row * problem.headdim_v)];
    if (optest::visible(problem, 0, 0, row, key)) {
      EXPECT_TRUE(std::isnan(lse) && std::isnan(out)) << row << ": " << lse << ", " << out;
    } else {
      EXPECT_EQ(lse, clean.outputs.lse[static_cast<size_t>(row)]) << row;
      EXPECT_EQ(out, clean.outputs.out[static_cast<size_t>(row * problem.headdim_v)]) << row;
    }
  }
}

// Rows whose every score is -inf see keys, but weigh none: as if they saw none [5].
TEST_P(ForwardRows, ScoresOfMinusInfinity) {
  if (id().is_fp8()) GTEST_SKIP() << "e4m3 has no infinity";
  const Problem problem = dense(m() + 3, 3 * n());
  optest::Inputs inputs = optest::random_inputs(problem, 1);
  for (int64_t row = 0; row < problem.seqlen_q; ++row) inputs.q[static_cast<size_t>(row * problem.headdim)] = 1;
  for (int64_t key = 0; key < problem.seqlen_k; ++key) {
    inputs.k[static_cast<size_t>(key * problem.headdim)] = -std::numeric_limits<double>::infinity();
  }
  const ForwardRun run = run_case(problem, inputs, 1, 1);
  ASSERT_FALSE(run.result.report) << run.result.text();
  for (const double lse : run.outputs.lse) EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
  for (const double out : run.outputs.out) EXPECT_EQ(out, 0);
}

TEST(Forward, SameSeedSameRun) {
  const Problem problem = dense_problem({0, TANDEM_BF16}, 200, 200, 3);
  const optest::Inputs inputs = optest::random_inputs(problem, 1);
  const auto run = [&](uint64_t seed, bool keep_events) {
    Options options;
    options.seed = seed;
    options.keep_events = keep_events;
    return run_forward(problem, inputs, 2, options);
  };
  const ForwardRun first = run(7, false);
  const ForwardRun again = run(7, true);
  const ForwardRun other = run(8, false);
  EXPECT_EQ(first.result.trace_hash, again.result.trace_hash);
  EXPECT_EQ(first.result.steps, again.result.steps);
  EXPECT_EQ(first.outputs.out, again.outputs.out);
  EXPECT_NE(first.result.trace_hash, other.result.trace_hash);
  EXPECT_EQ(first.outputs.out, other.outputs.out);
}

}  // namespace
}  // namespace tandem::model
