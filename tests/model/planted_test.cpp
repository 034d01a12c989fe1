// The forward kernel with one bug at a time: the model must name it, whatever the schedule.

#include <gtest/gtest.h>

#include <ostream>

#include "forward/launch.h"
#include "forward/planted.h"

namespace tandem::model {

void PrintTo(const PlantedBug& bug, std::ostream* stream) {
  *stream << bug.text;
}

namespace {

ForwardRun run_with(const std::vector<Fault>& faults, uint64_t seed) {
  Options options;
  options.seed = seed;
  options.faults = faults;
  return run_forward(planted_problem(), planted_inputs(), 1, options);
}

class Planted : public testing::TestWithParam<PlantedBug> {};

TEST_P(Planted, IsNamed) {
  const PlantedBug& bug = GetParam();
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const ForwardRun run = run_with(bug.faults, seed);
    ASSERT_TRUE(run.result.faults_applied) << "nothing was broken";
    ASSERT_TRUE(run.result.report) << "seed " << seed << ": the model saw nothing";
    EXPECT_STREQ(kind_name(run.result.report->kind), kind_name(bug.kind)) << run.result.text();
    for (const std::string& word : bug.words) {
      EXPECT_NE(run.result.report->message.find(word), std::string::npos) << "\"" << word << "\" is not in:\n"
                                                                          << run.result.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forward, Planted, testing::ValuesIn(planted_bugs()),
                         [](const testing::TestParamInfo<PlantedBug>& info) { return info.param.name; });

std::string fault_of_run(const ForwardRun& run) {
  return fault_of(planted_problem(), planted_inputs(), run);
}

TEST(PlantedResult, NothingBroken) {
  const ForwardRun run = run_with({}, 1);
  EXPECT_EQ(fault_of_run(run), "");
  EXPECT_GT(run.result.count(Op::kMma), 0u);
}

// What breaks no rule of the hardware shows in the result.
TEST(PlantedResult, BoxOneRowOff) {
  Fault fault;
  fault.op = Op::kTmaLoad;
  fault.change = Change::kAdd;
  fault.amount = 1;
  fault.at = "k";
  const ForwardRun run = run_with({fault}, 1);
  ASSERT_FALSE(run.result.report) << run.result.text();
  EXPECT_NE(fault_of_run(run), "");
}

TEST(PlantedResult, OutputNotStored) {
  Fault fault;
  fault.op = Op::kTmaStore;
  fault.at = "q[1]";
  const ForwardRun run = run_with({fault}, 1);
  ASSERT_FALSE(run.result.report) << run.result.text();
  EXPECT_EQ(run.unwritten.substr(0, 4), "out ");
}

// The NaN of keys that are not used.
TEST(PlantedResult, NotCleaned) {
  Fault fault;
  fault.op = Op::kStoreShared;
  fault.function = "clear_rows";
  const ForwardRun run = run_with({fault}, 1);
  ASSERT_FALSE(run.result.report) << run.result.text();
  EXPECT_NE(fault_of_run(run), "");
}

}  // namespace
}  // namespace tandem::model
