#include "target.h"

namespace tandem::optest {

Problem fitted(Problem problem, const Target& target) {
  if (!target.fixed()) return problem;
  const bool fp32_out = problem.out_dtype != problem.dtype && target.fp32_results;
  const int32_t own_type = target.dtype == TANDEM_E4M3 ? int32_t{TANDEM_BF16} : target.dtype;
  problem.out_dtype = fp32_out ? int32_t{TANDEM_FP32} : own_type;
  problem.dtype = target.dtype;
  problem.lse_dtype = TANDEM_FP32;
  problem.headdim = target.headdim;
  problem.headdim_v = target.headdim_v;
  problem.v_transposed = target.v_in_slots;
  return problem;
}

}  // namespace tandem::optest
