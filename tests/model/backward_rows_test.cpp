// The kernels before and after the backward kernel, run in the model, on the cases that run on the GPU too.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backward/rows.h"
#include "backward_rows_case.h"
#include "engine/machine.h"
#include "sm90/backward/postprocess_plan.h"
#include "sm90/backward/preprocess_plan.h"

namespace tandem::model {
namespace {

using gpu_test::RowsCase;
using gpu_test::RowsData;
using gpu_test::RowsPointers;

// More q_blocks than any case has.
constexpr int64_t kMostBlocks = 64;

// Empty, or what was wrong.
std::string fault_of(const RunResult& result) {
  return result.report ? result.text() : "";
}

// Empty, or what was wrong.
std::string run_case(const RowsCase& test) {
  const RowsData data(test);
  Machine machine({});
  GlobalMemory& global = machine.global();
  RowsPointers at = data.upload(
      [&global](const char* name, const void* bytes, size_t size) { return global.upload_bytes(name, bytes, size); });
  auto* const dq = static_cast<uint8_t*>(at.dq = global.allocate("dq", data.dq_bytes()));
  auto* const dsink = static_cast<float*>(at.dsink = global.allocate("dsink", data.dsink_bytes()));
  auto* const workspace = static_cast<uint8_t*>(at.workspace = global.allocate("workspace", data.workspace_bytes()));
  const AttentionProblem problem = data.problem(at);

  std::string fault = fault_of(run_preprocess(machine, sm90::plan_preprocess(problem, data.tiles_row()), kMostBlocks));
  if (!fault.empty()) return fault;
  std::vector<uint8_t> bytes(workspace, workspace + data.workspace_bytes());
  fault = data.fault_of_workspace(bytes);
  if (!fault.empty()) return fault;

  data.set_sums(bytes);
  std::copy(bytes.begin(), bytes.end(), workspace);
  fault = fault_of(run_postprocess(machine, sm90::plan_postprocess(problem, data.tiles_row()), kMostBlocks));
  if (!fault.empty()) return fault;
  return data.fault_of_results(bytes, std::vector<uint8_t>(dq, dq + data.dq_bytes()),
                               std::vector<float>(dsink, dsink + data.dsink_bytes() / sizeof(float)));
}

TEST(BackwardRows, CasesOfEveryKind) {
  for (const RowsCase& test : gpu_test::rows_cases()) {
    EXPECT_EQ(run_case(test), "") << test.name << ", headdim " << test.headdim << ", " << dtype_name(test.dtype);
  }
}

TEST(BackwardRows, EachValueHasItsPlace) {
  std::set<int> places;
  for (int m = 0; m < 128; ++m) places.insert(sm90::row_value_place(m));
  EXPECT_EQ(places.size(), 128u);
  EXPECT_EQ(*places.rbegin(), 127);
  for (const int headdim : {64, 96, 128, 192, 256}) {
    places.clear();
    for (int m = 0; m < 128; ++m) {
      for (int c = 0; c < headdim; ++c) places.insert(sm90::dq_place(m, c, headdim));
    }
    EXPECT_EQ(places.size(), static_cast<size_t>(128 * headdim));
    EXPECT_EQ(*places.rbegin(), 128 * headdim - 1);
  }
}

}  // namespace
}  // namespace tandem::model
