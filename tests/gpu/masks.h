#pragma once

#include <string>
#include <vector>

#include "problem.h"

namespace tandem::gpu_test {

// What a sweep over lengths is repeated with.
struct Variant {
  std::string name;
  void (*apply)(optest::Problem& problem);
};

// Every kind of mask, alone and combined.
const std::vector<Variant>& mask_variants();
// Softcap, sink, scales, no LSE.
const std::vector<Variant>& score_variants();

// What only the backward knows: gradients through LSE, the deterministic mode.
const std::vector<Variant>& gradient_variants();

// Row intervals by chance: full ones, empty ones, wide and narrow ones, and bounds that must be clamped; in some
// sequences no row sees the first or the last keys.
void add_intervals(optest::Problem& problem, bool lo, bool hi, uint64_t seed);

}  // namespace tandem::gpu_test
