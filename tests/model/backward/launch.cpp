#include "backward/launch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "backward/instance.h"
#include "backward/rows.h"
#include "compare.h"
#include "core/int_math.h"
#include "core/problem.h"
#include "dense_attention.h"
#include "float_types.h"
#include "problem_memory.h"
#include "sm90/backward/first_turns.cuh"
#include "sm90/backward/key_blocks.cuh"
#include "sm90/backward/plan.h"
#include "sm90/backward/tiles.h"

namespace tandem::model {
namespace {

using optest::Problem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <bool kGeneral, int... kRows>
BackwardInstance find_instance(int row, DType dtype, std::integer_sequence<int, kRows...>) {
  constexpr BackwardInstance (*kInstances[])(DType) = {&backward_instance<kRows, kGeneral>...};
  return kInstances[row](dtype);
}

BackwardInstance find_instance(const sm90::BackwardPlan& plan) {
  constexpr std::make_integer_sequence<int, sm90::kBackwardTilesCount> kRows;
  return plan.general ? find_instance<true>(plan.tiles_row, plan.dtype, kRows)
                      : find_instance<false>(plan.tiles_row, plan.dtype, kRows);
}

Launch key_blocks_launch(const sm90::BackwardPlan& plan) {
  constexpr int kRecordsOfBlock = sm90::kKeyBlockThreads / 32;
  Launch launch;
  launch.blocks = static_cast<int>(ceil_div(plan.max_records, kRecordsOfBlock));
  launch.threads = sm90::kKeyBlockThreads;
  launch.dependent = true;
  launch.kernel = [&plan] { sm90::key_blocks_kernel(plan.key_blocks); };
  return launch;
}

Launch first_turns_launch(const sm90::BackwardPlan& plan) {
  Launch launch;
  launch.blocks = static_cast<int>(plan.first_turns_blocks);
  launch.threads = sm90::kFirstTurnsThreads;
  launch.dependent = true;
  launch.kernel = [&plan] { sm90::first_turns_kernel(plan.key_blocks); };
  return launch;
}

// As sm90/backward/launch.cu does it.
RunResult run_gradients(Machine& machine, const sm90::BackwardPlan& plan, int blocks) {
  machine.run(key_blocks_launch(plan));
  if (plan.first_turns_blocks > 0) machine.run(first_turns_launch(plan));
  const BackwardInstance instance = find_instance(plan);
  instance.name_everything(machine.names());
  sm90::BackwardParams params = plan.params;
  params.q = machine.encode(plan.q);
  params.k = machine.encode(plan.k);
  params.v = machine.encode(plan.v);
  params.dout = machine.encode(plan.dout);
  params.dk = machine.encode(plan.dk);
  params.dv = machine.encode(plan.dv);
  Launch launch;
  launch.blocks = static_cast<int>(min_of(int64_t{blocks}, plan.max_tiles));
  launch.threads = instance.threads;
  launch.shared_bytes = instance.shared_bytes;
  launch.dependent = true;
  launch.kernel = [&] { instance.kernel(params); };
  return machine.run(launch);
}

size_t bytes_of_dq(const sm90::BackwardPlan& plan) {
  const sm90::BackwardTiles& tiles = sm90::kBackwardTiles[plan.tiles_row];
  return static_cast<size_t>(plan.preprocess.blocks) * tiles.block_m * tiles.headdim * sizeof(float);
}

// A report ends all that follows it.
RunResult run_all(Machine& machine, const sm90::BackwardPlan& plan, int blocks) {
  RunResult result = run_preprocess(machine, plan.preprocess, plan.preprocess.blocks);
  if (plan.max_tiles > 0) result = run_gradients(machine, plan, blocks);
  if (plan.postprocess.blocks == 0) return result;
  const Names names = std::exchange(machine.names(), Names());  // of another kernel's shared memory
  result = run_postprocess(machine, plan.postprocess, plan.postprocess.blocks);
  machine.names() = names;
  return result;
}

// Fills the elements of row `row` of one head.
void fill_row(std::vector<double>& values, int64_t row, int64_t headdim, double value) {
  std::fill_n(values.begin() + row * headdim, headdim, value);
}

// Calls visit(row) for each query row of each head of each sequence that sees no key; rows count heads too.
template <typename Visit>
void visit_blind_rows(const Problem& p, const optest::Results& oracle, const Visit& visit) {
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.nheads_q; ++h) {
      for (int64_t i = 0; i < p.span(b).q_len; ++i) {
        if (std::isfinite(oracle.lse[static_cast<size_t>(p.lse_index(b, h, i))])) continue;
        visit((p.span(b).q_begin + i) * p.nheads_q + h);
      }
    }
  }
}

}  // namespace

BackwardCase backward_case(const Problem& problem, uint64_t seed) {
  BackwardCase given{problem, optest::random_inputs(problem, seed), {}, {}, {}};
  optest::Inputs& inputs = given.inputs;
  given.oracle = optest::dense_attention<double>(problem, inputs, true);
  given.out = given.oracle.out;
  given.lse = given.oracle.lse;
  for (size_t i = 0; i < given.out.size(); ++i) {
    given.out[i] = std::isnan(inputs.dout[i]) ? kNan : optest::round_to(problem.dtype, given.out[i]);
  }
  for (size_t i = 0; i < given.lse.size(); ++i) {
    if (std::isnan(inputs.dlse[i])) given.lse[i] = kNan;
  }
  if (!problem.sink.empty()) return given;
  visit_blind_rows(problem, given.oracle, [&](int64_t row) {
    fill_row(inputs.q, row, problem.headdim, kNan);
    fill_row(inputs.dout, row, problem.headdim_v, kNan);
    fill_row(given.out, row, problem.headdim_v, kNan);
  });
  return given;
}

BackwardRun run_backward(const BackwardCase& given, int blocks, const Options& options) {
  const Problem& p = given.problem;
  Machine machine(options);
  ProblemMemory memory(machine.global(), p);
  AttentionProblem problem = memory.attention_problem(given.inputs);
  problem.backward = true;
  problem.out = memory.upload("out", given.out, p.rows_q(), p.nheads_q, p.headdim_v);
  problem.lse = memory.upload_row_values("lse", given.lse);
  problem.dout = memory.upload("dout", given.inputs.dout, p.rows_q(), p.nheads_q, p.headdim_v);
  if (p.with_dlse) problem.dlse = memory.upload_row_values("dlse", given.inputs.dlse);
  problem.dq = memory.allocate("dq", p.rows_q(), p.nheads_q, p.headdim);
  problem.dk = memory.allocate("dk", p.rows_k(), p.nheads_k, p.headdim);
  problem.dv = memory.allocate("dv", p.rows_k(), p.nheads_k, p.headdim_v);
  const size_t dsink_bytes = p.sink.size() * sizeof(float);
  if (!p.sink.empty()) problem.dsink = {machine.global().allocate("dsink", dsink_bytes), DType::kFp32, 1};
  const Status status = sm90::backward_supports(problem);
  if (!status.is_ok()) throw std::invalid_argument(status.message());
  problem.exec.deterministic = p.deterministic;
  problem.exec.workspace = machine.global().allocate("workspace", sm90::backward_workspace(problem).bytes);

  const sm90::BackwardPlan plan = sm90::plan_backward(problem);
  if (p.deterministic) machine.global().sum_in_order(plan.params.dq, bytes_of_dq(plan));
  BackwardRun run;
  run.result = run_all(machine, plan, blocks);
  run.names = machine.names();
  if (run.result.report) return run;
  optest::Results& gradients = run.gradients;
  gradients.dq = memory.values_of(problem.dq, p.rows_q(), p.nheads_q, p.headdim, run.unwritten);
  gradients.dk = memory.values_of(problem.dk, p.rows_k(), p.nheads_k, p.headdim, run.unwritten);
  gradients.dv = memory.values_of(problem.dv, p.rows_k(), p.nheads_k, p.headdim_v, run.unwritten);
  if (p.sink.empty()) return run;
  const auto* const dsink = static_cast<const float*>(problem.dsink.data);
  gradients.dsink.assign(dsink, dsink + p.sink.size());
  if (run.unwritten.empty()) run.unwritten = machine.global().unwritten(dsink, dsink_bytes);
  return run;
}

std::string fault_of(const BackwardCase& given, const BackwardRun& run) {
  if (run.result.report) return run.result.text();
  if (!run.unwritten.empty()) return run.unwritten + " was not written";
  optest::Results results = run.gradients;
  results.out = given.oracle.out;
  results.lse = given.oracle.lse;
  return optest::compare_with_oracle(given.problem, given.inputs, results, given.oracle);
}

}  // namespace tandem::model
