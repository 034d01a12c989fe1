#include "forward/problems.h"

#include <cmath>

#include "float_types.h"

namespace tandem::model {

std::string InstanceId::name() const {
  std::string text = dtype == TANDEM_BF16 ? "bf16_" : "fp16_";
  text += std::to_string(tiles().headdim);
  if (tiles().headdim_v != tiles().headdim) text += "_" + std::to_string(tiles().headdim_v);
  return text;
}

std::vector<InstanceId> forward_instances(int32_t dtype) {
  std::vector<InstanceId> instances;
  for (int row = 0; row < sm90::kForwardTilesCount; ++row) instances.push_back({row, dtype});
  return instances;
}

optest::Problem dense_problem(const InstanceId& instance, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads) {
  optest::Problem problem =
      optest::dense_problem(1, seqlen_q, seqlen_k, nheads, nheads, instance.tiles().headdim, instance.dtype);
  problem.headdim_v = instance.tiles().headdim_v;
  return problem;
}

optest::Problem packed_problem(const InstanceId& instance, const std::vector<int32_t>& lengths_q,
                               const std::vector<int32_t>& lengths_k, int64_t nheads) {
  optest::Problem problem = packed_with_gaps(lengths_q, lengths_k, nheads, instance.tiles().headdim, instance.dtype);
  problem.headdim_v = instance.tiles().headdim_v;
  return problem;
}

void grow_scores(const optest::Problem& problem, const InstanceId& instance, const std::function<bool(int64_t)>& grows,
                 double exponent, optest::Inputs& inputs) {
  constexpr double kQuery = 16;
  const double key_per_power = std::log(2.0) / (problem.scale() * kQuery);
  const int64_t last_block = (problem.seqlen_k - 1) / instance.block_n();
  for (int64_t row = 0; row < problem.seqlen_q * problem.nheads_q; ++row) {
    inputs.q[static_cast<size_t>(row * problem.headdim)] = grows(row / problem.nheads_q) ? kQuery : 0;
  }
  for (int64_t row = 0; row < problem.seqlen_k * problem.nheads_k; ++row) {
    const int64_t key = row / problem.nheads_k;
    const auto visited_before = static_cast<double>(last_block - key / instance.block_n());
    inputs.k[static_cast<size_t>(row * problem.headdim)] =
        optest::round_to(problem.dtype, exponent * visited_before * key_per_power);
  }
}

}  // namespace tandem::model
