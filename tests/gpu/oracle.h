#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem::gpu_test {

// Attention by plain kernels in double, from the definition, for dense bf16 problems on device 0. Contiguous results of
// (batch, seqlen_q, nheads_q, headdim_v) and (batch, nheads_q, seqlen_q). The whole score row lies in shared memory: at
// most 25000 keys.
//
// rounded: with S, P and O rounded to bf16, the yardstick of the contract's accuracy [16].
void attention_oracle(const AttentionProblem& problem, bool rounded, double* out, double* lse);

}  // namespace tandem::gpu_test
