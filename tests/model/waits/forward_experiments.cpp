#include <cstring>
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

  ForwardRun run(const Options& options) const { return run_forward(problem, inputs, blocks, options); }
};

Finding report_of(const ForwardRun& run) {
  return {kind_name(run.result.report->kind), run.result.report->message};
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Nothing, if the run has given what `right` has: an order of events changes no bit.
Finding difference(const ForwardRun& run, const ForwardRun& right) {
  if (run.result.report) return report_of(run);
  if (!run.unwritten.empty()) return {"wrong result", run.unwritten + " was not written"};
  const bool same = same_bits(run.outputs.out, right.outputs.out) && same_bits(run.outputs.lse, right.outputs.lse);
  return same ? Finding{} : Finding{"wrong result", "not that of the whole kernel"};
}

using MakeInputs = std::function<optest::Inputs(const optest::Problem&)>;

Experiment experiment(
    const std::string& name, const optest::Problem& problem, int blocks,
    const MakeInputs& make_inputs = [](const optest::Problem& p) { return optest::random_inputs(p, 1); }) {
  const auto make = [problem, blocks, make_inputs] { return Given{problem, make_inputs(problem), blocks}; };
  const auto check = [make] {
    const Given given = make();
    const ForwardRun run = given.run(options_for(1));
    return run.result.report ? report_of(run) : Finding{"", fault_of(given.problem, given.inputs, run)};
  };
  const auto prepare = [make]() -> Run {
    const auto given = std::make_shared<Given>(make());
    const auto right = std::make_shared<ForwardRun>(given->run(options_for(1)));
    return [given, right](const Options& options) { return difference(given->run(options), *right); };
  };
  return {name, check, prepare};
}

// More than twice the stages of K and V, work tiles enough for every slot to be used again, used keys that end inside
// a block, and in the first instances scores that grow.
Experiment many_blocks(const InstanceId& id) {
  const int heads = id.is_fp8() ? 2 : 5;  // the model takes longer over sums in fp8
  optest::Problem problem = dense_problem(id, id.block_m(), 6 * id.block_n() - 30, heads);
  problem.seqused_k = {static_cast<int32_t>(problem.seqlen_k - 7)};
  return experiment("many_blocks_" + id.name(), problem, 1, [id](const optest::Problem& p) {
    optest::Inputs inputs = optest::random_inputs(p, 1);
    const double exponent = id.is_fp8() ? 140 : 20;  // a block; so that scores are computed again
    grow_scores(p, id, [](int64_t row) { return row % 64 == 5; }, exponent, inputs);
    return inputs;
  });
}

// Blocks without keys to clear, and few of them.
Experiment full_blocks(const InstanceId& id) {
  return experiment("full_blocks_" + id.name(), dense_problem(id, id.block_m(), 2 * id.block_n(), 7), 1);
}

// The diagonal crosses two blocks of a consumer.
Experiment causal(const InstanceId& id) {
  optest::Problem problem = dense_problem(id, 2 * id.block_m() + 8, 2 * id.block_m() + 28, id.is_fp8() ? 1 : 3);
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

// e4m3: a scale for each run of 128 rows of each head, no two the same.
optest::ScaleSet different_scales(int64_t heads, int64_t rows, double first) {
  optest::ScaleSet scales;
  scales.ndim = 3;
  scales.heads = heads;
  scales.blocks = (rows + 127) / 128;
  for (int64_t i = 0; i < heads * scales.blocks; ++i) scales.values.push_back(first + static_cast<double>(i) / 16);
  return scales;
}

// More blocks of keys than stages, under as many scales; used keys that end inside a block.
Experiment scaled(const InstanceId& id, bool v_transposed) {
  optest::Problem problem = dense_problem(id, id.block_m(), 5 * id.block_n() - 30, 3);
  problem.seqused_k = {static_cast<int32_t>(problem.seqlen_k - 7)};
  problem.v_transposed = v_transposed;
  problem.q_scale = different_scales(3, problem.seqlen_q, 0.5);
  problem.k_scale = different_scales(3, problem.seqlen_k, 0.75);
  problem.v_scale = different_scales(3, problem.seqlen_k, 1.25);
  return experiment((v_transposed ? "scaled_" : "scaled_stored_v_") + id.name(), problem, 1);
}

Experiment packed_stored_v(const InstanceId& id) {
  const int m = id.block_m();
  const int n = id.block_n();
  optest::Problem problem = packed_problem(id, {0, 1, m + 3, 40, 64, 5, 100}, {5, 0, n + 2, 2 * n + 1, n, 1, n}, 2);
  problem.v_transposed = false;
  return experiment("packed_stored_v_" + id.name(), problem, 2);
}

}  // namespace

std::vector<Experiment> forward_experiments() {
  const InstanceId no_turns = {0, TANDEM_BF16};  // four consumers, five stages of K
  const InstanceId three_consumers = {1, TANDEM_BF16};
  const InstanceId two_stages = {3, TANDEM_BF16};
  const InstanceId one_place_for_q = {5, TANDEM_BF16};
  const auto e4m3 = [](int row) { return InstanceId{row, TANDEM_E4M3}; };  // the last two keep O in shared memory
  return {many_blocks(no_turns),
          full_blocks(no_turns),
          many_blocks(three_consumers),
          many_blocks(two_stages),
          many_blocks(one_place_for_q),
          causal(two_stages),
          packed(three_consumers),
          different_keys(three_consumers),
          causal(e4m3(1)),
          packed_stored_v(e4m3(1)),
          scaled(e4m3(1), true),
          scaled(e4m3(0), false),
          many_blocks(e4m3(1)),
          many_blocks(e4m3(0)),
          scaled(e4m3(2), false),
          scaled(e4m3(3), true),
          many_blocks(e4m3(3))};
}

}  // namespace tandem::model
