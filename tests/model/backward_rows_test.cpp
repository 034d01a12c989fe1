// The kernels before and after the backward kernel, run in the model, on the cases that run on the GPU too.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backward_rows_case.h"
#include "engine/machine.h"
#include "sm90/backward/postprocess.cuh"
#include "sm90/backward/postprocess_plan.h"
#include "sm90/backward/prepare.cuh"
#include "sm90/backward/preprocess.cuh"
#include "sm90/backward/preprocess_plan.h"

namespace tandem::model {
namespace {

using gpu_test::RowsCase;
using gpu_test::RowsData;
using gpu_test::RowsPointers;

// Calls run(QBlockTraits) of the instance.
template <typename Element, typename Run, int... kRows>
void with_traits(int row, const Run& run, std::integer_sequence<int, kRows...>) {
  ((row == kRows ? run(sm90::QBlockTraits<Element, kRows>()) : void()), ...);
}
template <typename Run>
void with_traits(DType dtype, int row, const Run& run) {
  constexpr std::make_integer_sequence<int, sm90::kBackwardTilesCount> rows;
  if (dtype == DType::kBf16) {
    with_traits<Bf16>(row, run, rows);
  } else {
    with_traits<Fp16>(row, run, rows);
  }
}

// All blocks of a grid are in the model at once; no case has more q_blocks than this. Packed ones have more blocks.
constexpr int64_t kMostBlocks = 64;

Launch grid_of(int64_t blocks, uint32_t shared_bytes, bool dependent) {
  Launch launch;
  launch.blocks = static_cast<int>(std::min(blocks, kMostBlocks));
  launch.threads = sm90::kQBlockThreads;
  launch.shared_bytes = shared_bytes;
  launch.dependent = dependent;
  return launch;
}

// As preprocess.cu launches them. Empty, or what was wrong.
std::string run_preprocess(Machine& machine, const sm90::PreprocessPlan& plan) {
  if (plan.packed) {
    Launch prepare;
    prepare.threads = sm90::kPrepareThreads;
    prepare.shared_bytes = sm90::kPrepareSmemBytes;
    prepare.kernel = [&plan] { sm90::prepare_backward_kernel(plan.prepare); };
    const RunResult result = machine.run(prepare);
    if (result.report) return result.text();
  }
  Launch launch = grid_of(plan.blocks, plan.smem_bytes, plan.packed);
  launch.kernel = [&plan] {
    with_traits(plan.dtype, plan.tiles_row,
                [&plan](auto traits) { sm90::preprocess_kernel<decltype(traits)>(plan.params); });
  };
  const RunResult result = machine.run(launch);
  return result.report ? result.text() : "";
}

std::string run_postprocess(Machine& machine, const sm90::PostprocessPlan& plan) {
  if (plan.blocks == 0) return "";
  Launch launch = grid_of(plan.blocks, sm90::kPostprocessSmemBytes, true);
  launch.kernel = [&plan] {
    with_traits(plan.dtype, plan.tiles_row,
                [&plan](auto traits) { sm90::postprocess_kernel<decltype(traits)>(plan.params); });
  };
  const RunResult result = machine.run(launch);
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

  std::string fault = run_preprocess(machine, sm90::plan_preprocess(problem, data.tiles_row()));
  if (!fault.empty()) return fault;
  std::vector<uint8_t> bytes(workspace, workspace + data.workspace_bytes());
  fault = data.fault_of_workspace(bytes);
  if (!fault.empty()) return fault;

  data.set_sums(bytes);
  std::copy(bytes.begin(), bytes.end(), workspace);
  fault = run_postprocess(machine, sm90::plan_postprocess(problem, data.tiles_row()));
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
  for (const int headdim : {64, 128, 192, 256}) {
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
