#include <memory>

#include "forward/launch.h"
#include "forward/problems.h"
#include "waits/experiments.h"

namespace tandem::model {
namespace {

struct Given {
  optest::Problem problem;
  optest::Inputs inputs;
  int blocks;
};

Finding finding_of(const Given& given, const ForwardRun& run) {
  if (run.result.report) return {kind_name(run.result.report->kind), run.result.report->message};
  const std::string fault = fault_of(given.problem, given.inputs, run);
  return {fault.empty() ? "" : "wrong result", fault};
}

Experiment experiment(const std::string& name, const optest::Problem& problem, const optest::Inputs& inputs,
                      int blocks) {
  const auto given = std::make_shared<Given>(Given{problem, inputs, blocks});
  return {name, [given](const Options& options) {
            return finding_of(*given, run_forward(given->problem, given->inputs, given->blocks, options));
          }};
}
Experiment experiment(const std::string& name, const optest::Problem& problem, int blocks) {
  return experiment(name, problem, optest::random_inputs(problem, 1), blocks);
}

// More than twice the stages of K and V, work tiles enough for every slot to be used again, used keys that end inside
// a block, and in the first instances scores that grow.
Experiment many_blocks(const InstanceId& id) {
  optest::Problem problem = dense_problem(id, id.block_m(), 6 * id.block_n() - 30, 5);
  problem.seqused_k = {static_cast<int32_t>(problem.seqlen_k - 7)};
  optest::Inputs inputs = optest::random_inputs(problem, 1);
  grow_scores(problem, id, [](int64_t row) { return row % 64 == 5; }, 20, inputs);
  return experiment("many_blocks_" + id.name(), problem, inputs, 1);
}

// Blocks without keys to clear, and few of them.
Experiment full_blocks(const InstanceId& id) {
  return experiment("full_blocks_" + id.name(), dense_problem(id, id.block_m(), 2 * id.block_n(), 7), 1);
}

Experiment causal(const InstanceId& id) {
  optest::Problem problem = dense_problem(id, 2 * id.block_m() + 8, 2 * id.block_m() + 8, 3);
  problem.causal = true;
  return experiment("causal_" + id.name(), problem, 2);
}

// Stores row by row; sequences without keys, or without rows.
Experiment packed(const InstanceId& id) {
  const int m = id.block_m();
  const int n = id.block_n();
  return experiment(
      "packed_" + id.name(),
      packed_problem(id, {0, 1, m + 3, 40, 64, 5, 100, 20, 70, 33}, {5, 0, n + 2, 2 * n + 1, n, 1, n, n, 3 * n, n}, 2),
      2);
}

// Consumers of one tile that see other keys than the next consumer, or none.
Experiment different_keys(const InstanceId& id) {
  const int n = id.block_n();
  optest::Problem problem = dense_problem(id, 2 * id.block_m(), 4 * n, 5);
  set_intervals(problem, [n](int64_t head, int64_t row) -> Interval {
    switch ((row / 64 + head) % 5) {
      case 0: return {0, 10};
      case 1: return {3 * n + 5, 4 * n};
      case 2: return {0, 0};
      case 3: return {0, 4 * n};
      default: return {n, 2 * n + 3};
    }
  });
  return experiment("different_keys_" + id.name(), problem, 1);
}

}  // namespace

std::vector<Experiment> forward_experiments() {
  const InstanceId no_turns = {0, TANDEM_BF16};  // four consumers, five stages of K
  const InstanceId three_consumers = {1, TANDEM_BF16};
  const InstanceId two_stages = {3, TANDEM_BF16};
  const InstanceId one_place_for_q = {5, TANDEM_BF16};
  return {many_blocks(no_turns),        many_blocks(three_consumers),   many_blocks(two_stages),
          many_blocks(one_place_for_q), full_blocks(no_turns),          causal(two_stages),
          packed(three_consumers),      different_keys(three_consumers)};
}

}  // namespace tandem::model
