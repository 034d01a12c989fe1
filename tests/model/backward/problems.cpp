#include "backward/problems.h"

namespace tandem::model {
namespace {

optest::Problem of_instance(optest::Problem problem, const BackwardId& id) {
  problem.headdim_v = id.tiles().headdim_v;
  if (id.general) problem.softcap = 2.5;
  return problem;
}

}  // namespace

std::string BackwardId::name() const {
  std::string text = dtype == TANDEM_BF16 ? "bf16_" : "fp16_";
  text += std::to_string(tiles().headdim);
  if (tiles().headdim_v != tiles().headdim) text += "_" + std::to_string(tiles().headdim_v);
  return general ? text + "_general" : text;
}

std::vector<BackwardId> backward_ids(int32_t dtype) {
  std::vector<BackwardId> ids;
  for (int row = 0; row < sm90::kBackwardTilesCount; ++row) {
    ids.push_back({row, false, dtype});
    if (sm90::has_general_instance(row)) ids.push_back({row, true, dtype});
  }
  return ids;
}

optest::Problem dense_problem(const BackwardId& id, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads) {
  return of_instance(optest::dense_problem(1, seqlen_q, seqlen_k, nheads, nheads, id.tiles().headdim, id.dtype), id);
}

optest::Problem packed_problem(const BackwardId& id, const std::vector<int32_t>& lengths_q,
                               const std::vector<int32_t>& lengths_k, int64_t nheads) {
  return of_instance(packed_with_gaps(lengths_q, lengths_k, nheads, id.tiles().headdim, id.dtype), id);
}

}  // namespace tandem::model
