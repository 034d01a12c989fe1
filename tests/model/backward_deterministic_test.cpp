// The backward in deterministic mode: dQ is added in one order, so that it keeps its bits in any order of events, on
// any number of blocks; each wait and fence of that is missed.

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "backward/launch.h"
#include "backward/problems.h"
#include "planted_bug.h"

namespace tandem::model {

void PrintTo(const BackwardId& id, std::ostream* stream) {
  *stream << id.name();
}

namespace {

using optest::Problem;

bool same_bits(const optest::Results& a, const optest::Results& b) {
  return a.dq == b.dq && a.dk == b.dk && a.dv == b.dv && a.dsink == b.dsink;
}

class Deterministic : public testing::TestWithParam<BackwardId> {
 protected:
  const BackwardId& id() const { return GetParam(); }
  int m() const { return id().tiles().block_m; }
  int n() const { return id().tiles().block_n; }
  Problem dense(int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1) const {
    Problem problem = dense_problem(id(), seqlen_q, seqlen_k, nheads);
    problem.deterministic = true;
    return problem;
  }

  // On so many blocks each, in another order of events each: a fair one, then the two extremes of options_for() in
  // turn.
  void expect_same_bits(const Problem& problem, const std::vector<int>& blocks = {3, 1}) {
    const BackwardCase given = backward_case(problem);
    const BackwardRun first = run_backward(given, blocks[0], options_for(1));
    ASSERT_EQ(fault_of(given, first), "") << describe(problem);
    for (size_t i = 1; i < blocks.size(); ++i) {
      const uint64_t seed = 2 + ++turn_ % 2;
      const BackwardRun other = run_backward(given, blocks[i], options_for(seed));
      ASSERT_FALSE(other.result.report) << other.result.text() << "\n" << describe(problem) << ", seed " << seed;
      EXPECT_TRUE(same_bits(first.gradients, other.gradients)) << describe(problem) << ", blocks " << blocks[i];
    }
  }

 private:
  uint64_t turn_ = 0;
};

std::string name_of(const testing::TestParamInfo<BackwardId>& info) {
  return info.param.name();
}
// What the order of the sums depends on is the same in both kinds of instance, but for interval arrays.
std::vector<BackwardId> ids_of_kind(bool general) {
  std::vector<BackwardId> ids = backward_ids(TANDEM_BF16);
  const auto other = [&](const BackwardId& some) { return some.general != general; };
  ids.erase(std::remove_if(ids.begin(), ids.end(), other), ids.end());
  return ids;
}
class DeterministicEachRow : public Deterministic {};
INSTANTIATE_TEST_SUITE_P(Bf16, DeterministicEachRow, testing::ValuesIn(ids_of_kind(false)), name_of);

// The other rows take their turns where one of these does.
std::vector<BackwardId> one_of_each_schedule() {
  std::vector<BackwardId> ids = ids_of_kind(false);
  const auto other = [](const BackwardId& some) {
    const int headdim = some.tiles().headdim;
    return headdim != 64 && headdim != 128 && headdim != 256;
  };
  ids.erase(std::remove_if(ids.begin(), ids.end(), other), ids.end());
  return ids;
}
INSTANTIATE_TEST_SUITE_P(Bf16, Deterministic, testing::ValuesIn(one_of_each_schedule()), name_of);

// More than three waves of work.
TEST_P(DeterministicEachRow, ManyWaves) {
  Problem problem = dense(m() + 9, 4 * n() + 20, 2);
  expect_same_bits(problem, {3, 3, 2});
  problem.causal = true;
  expect_same_bits(problem, {3, 2, 3});
}

// So many n_blocks that their kernel must go through them in several goes.
TEST_P(Deterministic, ManyKeyBlocks) {
  Problem problem = dense(9, 65 * n() + 1);
  problem.has_window = true;
  problem.window_left = 40 * n();
  problem.window_right = -n();
  expect_same_bits(problem, {12});
}

TEST_P(Deterministic, GroupsOfHeads) {
  Problem problem = dense(m() + 9, 3 * n(), 4);
  problem.nheads_k = 2;
  problem.with_dlse = true;
  problem.sink = {1, 0.5, -1, 0};
  problem.causal = true;
  expect_same_bits(problem);
}

TEST_P(Deterministic, Windows) {
  Problem problem = dense(2 * m() + 30, 2 * n() + 10);
  problem.has_window = true;
  problem.window_left = n() / 2;
  problem.window_right = 20;
  expect_same_bits(problem);
  problem.window_left = -1;
  problem.window_right = -20 + m();
  problem.top_left = true;
  expect_same_bits(problem);
  problem.window_left = 40;
  problem.window_right = -1;
  expect_same_bits(problem);
  problem.has_window = false;
  problem.attention_chunk = n() - 9;
  expect_same_bits(problem);
}

// Keys that no row sees, before and after those that have rows.
TEST_P(Deterministic, TilesWithoutSteps) {
  Problem problem = dense(m() + 9, 4 * n());
  problem.causal = problem.top_left = true;
  expect_same_bits(problem);
  problem.top_left = false;
  problem.has_window = true;
  problem.window_left = n() / 2;
  expect_same_bits(problem);
}

TEST_P(Deterministic, SequencesThatUseLess) {
  Problem problem = dense(m() + 3, 2 * n() + 3);
  problem.batch = 3;
  problem.seqused_q = {m() + 1, 0, m()};
  problem.seqused_k = {n() + 1, n(), 2 * n() + 3};
  expect_same_bits(problem);
}

TEST_P(Deterministic, PackedWithGaps) {
  Problem problem = packed_problem(id(), {0, 1, m() + 3, 40, 0}, {5, 0, 2 * n() + 2, n() + 1, 3}, 2);
  problem.nheads_k = 1;
  problem.deterministic = true;
  expect_same_bits(problem);
  problem.causal = true;
  expect_same_bits(problem);
}

// Interval arrays, by which an m_block may be visited by n_blocks with others between that are not.
class DeterministicIntervals : public Deterministic {
 protected:
  Problem plain(int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1) const {
    Problem problem = dense(seqlen_q, seqlen_k, nheads);
    problem.softcap = 0;
    return problem;
  }
};
INSTANTIATE_TEST_SUITE_P(Bf16, DeterministicIntervals, testing::ValuesIn(ids_of_kind(true)), name_of);

TEST_P(DeterministicIntervals, Documents) {
  Problem problem = plain(3 * m() + 10, 4 * n() + 50, 2);
  set_intervals(problem, [&](int64_t, int64_t row) -> Interval {
    const auto document = static_cast<int32_t>(row / 50);
    return {document * n() / 2, document * n() / 2 + n() / 2 + 3};
  });
  expect_same_bits(problem);
}

// The m_blocks in the middle see the first and the last keys: one row each.
TEST_P(DeterministicIntervals, GapsBetweenTheVisitors) {
  Problem problem = plain(4 * m(), 5 * n());
  set_intervals(problem, [&](int64_t, int64_t row) -> Interval {
    const auto m_block = static_cast<int32_t>(row / m());
    if (row % m() == 0 && m_block == 1) return {4 * n(), 5 * n()};
    if (m_block == 3) return {7, 7};
    return {m_block * n() / 2, m_block * n() / 2 + n() / 2};
  });
  expect_same_bits(problem);
}

// Late rows see early keys.
TEST_P(DeterministicIntervals, AgainstTheDiagonal) {
  Problem problem = plain(4 * m(), 4 * n() - 5, 2);
  set_intervals(problem, [&](int64_t, int64_t row) -> Interval {
    const auto first = static_cast<int32_t>(3 - row / m()) * n();
    return {first + 3, first + n() / 2};
  });
  expect_same_bits(problem);
}

TEST_P(DeterministicIntervals, HeadsThatDiffer) {
  Problem problem = plain(m() + 10, 3 * n(), 4);
  problem.nheads_k = 2;
  set_intervals(problem, [&](int64_t head, int64_t row) -> Interval {
    const int32_t first = head < 2 ? 0 : n() + n() / 2;
    return {first + static_cast<int32_t>(row % 3), first + n() + 20};
  });
  expect_same_bits(problem);
}

// Without it the tests above would show nothing.
TEST(OrdinaryBackward, DiffersFromOrderToOrder) {
  const BackwardId id{sm90::find_backward_tiles(128, 128, false), false, TANDEM_BF16};
  Problem problem = dense_problem(id, 2 * id.tiles().block_m, 4 * id.tiles().block_n, 2);
  const BackwardCase given = backward_case(problem);
  const BackwardRun first = run_backward(given, 4, options_for(1));
  bool differs = false;
  for (uint64_t seed = 2; seed < 8 && !differs; ++seed) {
    differs = first.gradients.dq != run_backward(given, 4, options_for(seed)).gradients.dq;
  }
  EXPECT_TRUE(differs);
}

struct PlantedTurn : testing::TestWithParam<int> {};  // a row of the instances

std::vector<PlantedBug> bugs() {
  constexpr ReportKind kRace = ReportKind::kRace;
  const std::vector<std::string> kAdded = {"bulk_reduce_add_f32", "workspace"};
  return {
      {"acquire", "a turn is seen, and not acquired", {skip(Op::kLoadAcquire)}, kRace, kAdded},
      {"release", "a turn is not passed on", {skip(Op::kStoreRelease)}, ReportKind::kDeadlock, {"only poll"}},
      {"release_too_early",
       "a turn is passed on before what was sent has been added",
       {skip(Op::kBulkWait, "", "add_step")},
       kRace,
       kAdded},
      {"fence",
       "a part of dQ is sent without a fence after the turn was acquired",
       {skip(Op::kFenceProxy, "", "add_step")},
       ReportKind::kMissingProxyFence,
       {"acquired a flag"}},
      {"staged",
       "dQ is added before it is staged",
       {skip(Op::kBarrierWait, "dq_full")},
       ReportKind::kUnwrittenRead,
       {"at dq["}},
      {"read",
       "dQ is staged again before what lies there has been read",
       {skip(Op::kBarrierWait, "dq_empty")},
       kRace,
       {"at dq["}},
      {"read_too_early",
       "a place is given back before it has been read",
       {skip(Op::kBulkWaitRead, "", "add_square")},
       kRace,
       {"at dq["}},
      {"turn_of_the_one_after",
       "an n_block waits for the turn of the one after it",
       {add(skip(Op::kLoadAcquire), -1)},
       ReportKind::kDeadlock,
       {"only poll"}},
      {"turn_passed_too_far",
       "a turn is passed on to the n_block before the next",
       {add(skip(Op::kStoreRelease), -1)},
       ReportKind::kDeadlock,
       {"only poll"}},
      {"turn_passed_to_oneself",
       "a turn is passed on to who has had it",
       {add(skip(Op::kStoreRelease), 1)},
       ReportKind::kDeadlock,
       {"only poll"}},
  };
}

TEST_P(PlantedTurn, IsNamed) {
  const BackwardId id{GetParam(), false, TANDEM_BF16};
  Problem problem = dense_problem(id, 2 * id.tiles().block_m, 3 * id.tiles().block_n);
  problem.deterministic = true;
  const BackwardCase given = backward_case(problem);
  uint64_t seed = 0;
  for (const PlantedBug& bug : bugs()) {
    Options options = options_for(1 + ++seed % 3);
    options.faults = bug.faults;
    const BackwardRun run = run_backward(given, 3, options);
    ASSERT_TRUE(run.result.faults_applied) << bug.text << ": nothing was broken";
    ASSERT_TRUE(run.result.report) << bug.text << ": the model saw nothing";
    EXPECT_STREQ(kind_name(run.result.report->kind), kind_name(bug.kind)) << bug.text << "\n" << run.result.text();
    for (const std::string& word : bug.words) {
      EXPECT_NE(run.result.report->message.find(word), std::string::npos) << bug.text << "\n" << run.result.text();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Rows, PlantedTurn, testing::Range(0, sm90::kBackwardTilesCount));

}  // namespace
}  // namespace tandem::model
