#pragma once

#include <cstdint>

#include "problem.h"

namespace tandem::gpu_test {

// Gives a problem in e4m3 scales by chance: of each tensor none, one, or one for each head or block of 128 rows, some
// negative and some 0; O in bf16 or fp16. Problems of other types stay as they are.
void vary_fp8(optest::Problem& problem, uint64_t seed);

}  // namespace tandem::gpu_test
