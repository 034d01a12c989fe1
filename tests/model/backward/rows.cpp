#include "backward/rows.h"

#include <algorithm>
#include <utility>

#include "sm90/backward/postprocess.cuh"
#include "sm90/backward/prepare.cuh"
#include "sm90/backward/preprocess.cuh"

namespace tandem::model {
namespace {

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

Launch grid_of(int64_t blocks, uint32_t shared_bytes, bool dependent) {
  Launch launch;
  launch.blocks = static_cast<int>(blocks);
  launch.threads = sm90::kQBlockThreads;
  launch.shared_bytes = shared_bytes;
  launch.dependent = dependent;
  return launch;
}

}  // namespace

RunResult run_preprocess(Machine& machine, const sm90::PreprocessPlan& plan, int64_t most_blocks) {
  if (plan.packed) {
    Launch prepare;
    prepare.threads = sm90::kPrepareThreads;
    prepare.shared_bytes = sm90::kPrepareSmemBytes;
    prepare.kernel = [&plan] { sm90::prepare_backward_kernel(plan.prepare); };
    RunResult result = machine.run(prepare);
    if (result.report) return result;
  }
  Launch launch = grid_of(std::min(plan.blocks, most_blocks), plan.smem_bytes, plan.packed);
  launch.kernel = [&plan] {
    with_traits(plan.dtype, plan.tiles_row,
                [&plan](auto traits) { sm90::preprocess_kernel<decltype(traits)>(plan.params); });
  };
  return machine.run(launch);
}

RunResult run_postprocess(Machine& machine, const sm90::PostprocessPlan& plan, int64_t most_blocks) {
  if (plan.blocks == 0) return {};
  Launch launch = grid_of(std::min(plan.blocks, most_blocks), sm90::kPostprocessSmemBytes, true);
  launch.kernel = [&plan] {
    with_traits(plan.dtype, plan.tiles_row,
                [&plan](auto traits) { sm90::postprocess_kernel<decltype(traits)>(plan.params); });
  };
  return machine.run(launch);
}

}  // namespace tandem::model
