#include "forward/launch.h"

#include <stdexcept>
#include <utility>

#include "compare.h"
#include "core/int_math.h"
#include "core/problem.h"
#include "dense_attention.h"
#include "forward/instance.h"
#include "problem_memory.h"
#include "sm90/forward/plan.h"
#include "sm90/forward/prepare.cuh"
#include "sm90/forward/tiles.h"

namespace tandem::model {
namespace {

using optest::Problem;

template <bool kGeneral, int... kRows>
ForwardInstance find_instance(int row, DType dtype, std::integer_sequence<int, kRows...>) {
  constexpr ForwardInstance (*kInstances[])(DType) = {&forward_instance<kRows, kGeneral>...};
  return kInstances[row](dtype);
}

template <bool kGeneral, int... kRows>
ForwardInstance find_fp8_instance(int row, bool transposes, std::integer_sequence<int, kRows...>) {
  constexpr ForwardInstance (*kInstances[])(bool) = {&fp8_forward_instance<kRows, kGeneral>...};
  return kInstances[row](transposes);
}

ForwardInstance find_instance(const sm90::ForwardPlan& plan) {
  if (plan.dtype == DType::kE4m3) {
    constexpr std::make_integer_sequence<int, sm90::kFp8ForwardTilesCount> kRows;
    return plan.general ? find_fp8_instance<true>(plan.tiles_row, plan.transposes, kRows)
                        : find_fp8_instance<false>(plan.tiles_row, plan.transposes, kRows);
  }
  constexpr std::make_integer_sequence<int, sm90::kForwardTilesCount> kRows;
  return plan.general ? find_instance<true>(plan.tiles_row, plan.dtype, kRows)
                      : find_instance<false>(plan.tiles_row, plan.dtype, kRows);
}

// As sm90/forward/launch.cu does it.
Launch prepare_launch(const sm90::ForwardPlan& plan, bool packed) {
  Launch launch;
  if (packed) {
    launch.threads = sm90::kPrepareThreads;
    launch.shared_bytes = sm90::kPrepareSmemBytes;
    launch.kernel = [&plan] { sm90::prepare_kernel(plan.prepare); };
  } else {
    launch.threads = 1;
    launch.kernel = [&plan] { sm90::reset_kernel(plan.params.workspace); };
  }
  return launch;
}

}  // namespace

ForwardRun run_forward(const Problem& problem, const optest::Inputs& inputs, int blocks, const Options& options,
                       const std::function<void(sm90::ForwardParams&)>& change) {
  Machine machine(options);
  ProblemMemory memory(machine.global(), problem);
  AttentionProblem attention = memory.attention_problem(inputs);
  attention.out = memory.allocate("out", problem.rows_q(), problem.nheads_q, problem.headdim_v);
  attention.lse = memory.allocate_row_values("lse");
  const Status status = sm90::forward_supports(attention);
  if (!status.is_ok()) throw std::invalid_argument(status.message());
  attention.exec.workspace = machine.global().allocate("workspace", sm90::forward_workspace(attention).bytes);
  const sm90::ForwardPlan plan = sm90::plan_forward(attention);
  const ForwardInstance instance = find_instance(plan);

  ForwardRun run;
  run.result = machine.run(prepare_launch(plan, problem.packed));
  if (run.result.report) return run;
  instance.name_everything(machine.names());
  sm90::ForwardParams params = plan.params;
  params.q = machine.encode(plan.q);
  params.k = machine.encode(plan.k);
  params.v = machine.encode(plan.v);
  params.out = machine.encode(plan.out);
  if (change) change(params);
  Launch launch;
  launch.blocks = static_cast<int>(min_of(int64_t{blocks}, plan.max_tiles));
  launch.threads = instance.threads;
  launch.shared_bytes = instance.shared_bytes;
  launch.dependent = true;
  launch.kernel = [&] { instance.kernel(params); };
  run.result = machine.run(launch);
  run.names = machine.names();
  if (run.result.report) return run;
  run.outputs.out =
      memory.values_of(attention.out, problem.rows_q(), problem.nheads_q, problem.headdim_v, run.unwritten);
  run.outputs.lse = memory.values_of(attention.lse, run.unwritten);
  return run;
}

std::string fault_of(const Problem& problem, const optest::Inputs& inputs, const ForwardRun& run) {
  if (run.result.report) return run.result.text();
  if (!run.unwritten.empty()) return run.unwritten + " was not written";
  const optest::Inputs real = optest::real_inputs(problem, inputs);
  return optest::compare_with_oracle(problem, inputs, run.outputs,
                                     optest::dense_attention<double>(problem, real, false),
                                     optest::Fp8Sums::kByTensorCores);
}

}  // namespace tandem::model
