// The backward kernel with one bug at a time: the model must name it.

#include <gtest/gtest.h>

#include <ostream>

#include "backward/planted.h"

namespace tandem::model {

void PrintTo(const PlantedBug& bug, std::ostream* stream) {
  *stream << bug.text;
}

namespace {

BackwardRun run_with(const BackwardCase& given, const std::vector<Fault>& faults, uint64_t seed) {
  Options options = options_for(seed);
  options.faults = faults;
  return run_backward(given, 1, options);
}

// In one of three orders of events, as the bug's name has it.
void expect_named(const PlantedBug& bug, const BackwardCase& given) {
  const uint64_t seed = 1 + bug.name.size() % 3;
  const BackwardRun run = run_with(given, bug.faults, seed);
  ASSERT_TRUE(run.result.faults_applied) << "nothing was broken";
  ASSERT_TRUE(run.result.report) << "seed " << seed << ": the model saw nothing";
  EXPECT_STREQ(kind_name(run.result.report->kind), kind_name(bug.kind)) << run.result.text();
  for (const std::string& word : bug.words) {
    EXPECT_NE(run.result.report->message.find(word), std::string::npos) << "\"" << word << "\" is not in:\n"
                                                                        << run.result.text();
  }
}

std::string name_of(const testing::TestParamInfo<PlantedBug>& info) {
  return info.param.name;
}

class PlantedBackward : public testing::TestWithParam<PlantedBug> {};
TEST_P(PlantedBackward, IsNamed) {
  expect_named(GetParam(), planted_backward_case());
}
INSTANTIATE_TEST_SUITE_P(Backward, PlantedBackward, testing::ValuesIn(planted_backward_bugs()), name_of);

class PlantedLate : public testing::TestWithParam<PlantedBug> {};
TEST_P(PlantedLate, IsNamed) {
  expect_named(GetParam(), planted_late_case());
}
INSTANTIATE_TEST_SUITE_P(Backward, PlantedLate, testing::ValuesIn(planted_late_bugs()), name_of);

std::string fault_of_run(const std::vector<Fault>& faults) {
  return fault_of(planted_backward_case(), run_with(planted_backward_case(), faults, 1));
}

TEST(PlantedBackwardResult, NothingBroken) {
  EXPECT_EQ(fault_of_run({}), "");
  EXPECT_EQ(fault_of(planted_late_case(), run_with(planted_late_case(), {}, 1)), "");
}

// Seen as a race, or as a barrier that is armed twice. Of the other instance, with as many stages of dO as of Q, it is
// not missed: dO's fall free before Q's.
TEST(PlantedBackwardResult, StageOfDoNotWaitedFor) {
  EXPECT_NE(fault_of(planted_late_case(), run_with(planted_late_case(), {skip(Op::kBarrierWait, "do_empty")}, 1)), "");
}

// What breaks no rule of the hardware shows in the result.
TEST(PlantedBackwardResult, KeysNotCleaned) {
  EXPECT_NE(fault_of_run({skip(Op::kStoreShared, "k", "clear_rows")}), "");
}
TEST(PlantedBackwardResult, RowsNotCleaned) {
  EXPECT_NE(fault_of_run({skip(Op::kStoreShared, "q", "clear_rows")}), "");
  EXPECT_NE(fault_of_run({skip(Op::kStoreShared, "do", "clear_rows")}), "");
}
TEST(PlantedBackwardResult, ASumNotAdded) {
  EXPECT_NE(fault_of_run({only(skip(Op::kBulkReduce), 1)}), "");
}

}  // namespace
}  // namespace tandem::model
