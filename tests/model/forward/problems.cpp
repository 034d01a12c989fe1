#include "forward/problems.h"

#include <cmath>

#include "float_types.h"

namespace tandem::model {

namespace {

void set_instance(const InstanceId& instance, optest::Problem& problem) {
  problem.headdim_v = instance.tiles().headdim_v;
  if (!instance.is_fp8()) return;
  problem.out_dtype = TANDEM_BF16;
  problem.v_transposed = instance.v_in_slots;
}

}  // namespace

std::string InstanceId::name() const {
  std::string text = std::string(tandem_dtype_name(dtype)) + "_" + std::to_string(tiles().headdim);
  if (tiles().headdim_v != tiles().headdim) text += "_" + std::to_string(tiles().headdim_v);
  if (v_in_slots) text += "_slots";
  return text;
}

std::vector<InstanceId> forward_instances(int32_t dtype) {
  std::vector<InstanceId> instances;
  const int rows = sm90::forward_tiles_count(dtype == TANDEM_E4M3);
  for (int row = 0; row < rows; ++row) {
    instances.push_back({row, dtype});
    if (dtype == TANDEM_E4M3) instances.push_back({row, dtype, true});
  }
  return instances;
}

optest::Problem dense_problem(const InstanceId& instance, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads) {
  optest::Problem problem =
      optest::dense_problem(1, seqlen_q, seqlen_k, nheads, nheads, instance.tiles().headdim, instance.dtype);
  set_instance(instance, problem);
  return problem;
}

optest::Problem packed_problem(const InstanceId& instance, const std::vector<int32_t>& lengths_q,
                               const std::vector<int32_t>& lengths_k, int64_t nheads) {
  optest::Problem problem = packed_with_gaps(lengths_q, lengths_k, nheads, instance.tiles().headdim, instance.dtype);
  set_instance(instance, problem);
  return problem;
}

void grow_scores(const optest::Problem& problem, const InstanceId& instance, const std::function<bool(int64_t)>& grows,
                 double exponent, optest::Inputs& inputs) {
  const double query = instance.is_fp8() ? 64 : 16;  // the keys' values must stay within 448
  const double key_per_power = std::log(2.0) / (problem.scale() * query);
  const int64_t last_block = (problem.seqlen_k - 1) / instance.block_n();
  for (int64_t row = 0; row < problem.seqlen_q * problem.nheads_q; ++row) {
    inputs.q[static_cast<size_t>(row * problem.headdim)] = grows(row / problem.nheads_q) ? query : 0;
  }
  for (int64_t row = 0; row < problem.seqlen_k * problem.nheads_k; ++row) {
    const int64_t key = row / problem.nheads_k;
    const auto visited_before = static_cast<double>(last_block - key / instance.block_n());
    inputs.k[static_cast<size_t>(row * problem.headdim)] =
        optest::round_to(problem.dtype, exponent * visited_before * key_per_power);
  }
}

}  // namespace tandem::model
