#include "target.h"

namespace tandem::optest {

Problem fitted(Problem problem, const Target& target) {
  if (!target.fixed()) return problem;
  problem.out_dtype = problem.out_dtype == problem.dtype ? target.dtype : int32_t{TANDEM_FP32};
  problem.dtype = target.dtype;
  problem.lse_dtype = TANDEM_FP32;
  problem.headdim = target.headdim;
  problem.headdim_v = target.headdim_v;
  return problem;
}

}  // namespace tandem::optest
