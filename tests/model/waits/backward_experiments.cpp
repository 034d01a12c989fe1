#include <memory>

#include "backward/launch.h"
#include "backward/planted.h"
#include "backward/problems.h"
#include "waits/experiments.h"

namespace tandem::model {
namespace {

Finding finding_of(const BackwardCase& given, const BackwardRun& run) {
  if (run.result.report) return {kind_name(run.result.report->kind), run.result.report->message};
  const std::string fault = fault_of(given, run);
  return {fault.empty() ? "" : "wrong result", fault};
}

Experiment experiment(const std::string& name, const std::function<BackwardCase()>& make_case, int blocks) {
  const auto prepare = [make_case, blocks]() -> Run {
    const auto given = std::make_shared<BackwardCase>(make_case());
    return
        [given, blocks](const Options& options) { return finding_of(*given, run_backward(*given, blocks, options)); };
  };
  return {"backward_" + name, [prepare] { return prepare()(options_for(1)); }, prepare};
}
Experiment experiment(const std::string& name, const optest::Problem& problem, int blocks) {
  return experiment(name, [problem] { return backward_case(problem); }, blocks);
}

// Tiles enough for every slot to be used again, of steps enough for every stage; rows and keys to clear.
Experiment many_steps(const BackwardId& id) {
  optest::Problem problem = dense_problem(id, 5 * id.tiles().block_m - 9, 2 * id.tiles().block_n + 5, 2);
  problem.causal = true;
  problem.seqused_k = {static_cast<int32_t>(problem.seqlen_k - 7)};
  return experiment("many_steps_" + id.name(), problem, 1);
}

// Stores row by row; sequences without keys, or without rows: tiles without a step.
Experiment packed(const BackwardId& id) {
  const int m = id.tiles().block_m;
  const int n = id.tiles().block_n;
  return experiment("packed_" + id.name(),
                    packed_problem(id, {0, 1, 2 * m + 3, 40, 0, 64}, {5, 0, n + 2, 2 * n + 1, n, 1}), 2);
}

// Tiles that wait for each other's turns, on fewer blocks; the first of one step. (Of more, the turns of the others
// would order the last one's sum too.)
Experiment deterministic(const BackwardId& id) {
  optest::Problem problem = dense_problem(id, 3 * id.tiles().block_n + 64, 4 * id.tiles().block_n);
  problem.causal = problem.top_left = true;
  problem.deterministic = true;
  return experiment("deterministic_" + id.name(), problem, 3);
}

// Heads of a sink each, with more m_blocks than postprocess has threads of a warp.
Experiment sinks(const BackwardId& id) {
  optest::Problem problem = dense_problem(id, 3 * id.tiles().block_m + 1, id.tiles().block_n - 30, 2);
  problem.causal = true;
  problem.sink = {-2.5, 4};
  return experiment("sinks_" + id.name(), problem, 1);
}

// The rows between have the schedule of one of these, but for the number of stages and squares.
bool is_schedule_of_its_own(const BackwardId& id) {
  const int headdim = id.tiles().headdim;
  return !id.general && (headdim == 64 || headdim == 128 || headdim == 256);
}

}  // namespace

std::vector<Experiment> backward_experiments() {
  std::vector<Experiment> all = {experiment("planted", planted_backward_case, 1),
                                 experiment("planted_late", planted_late_case, 1)};
  all.push_back(sinks(backward_ids(TANDEM_BF16).front()));
  for (const BackwardId& id : backward_ids(TANDEM_BF16)) {
    all.push_back(many_steps(id));
    if (!is_schedule_of_its_own(id)) continue;
    all.push_back(packed(id));
    all.push_back(deterministic(id));
  }
  return all;
}

}  // namespace tandem::model
