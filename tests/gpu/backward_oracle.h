#pragma once

#include <cstdint>
#include <string>

#include "device_view.h"

namespace tandem::gpu_test {

// The largest error of each gradient, and what was allowed.
struct GradientErrors {
  double dq = 0, dk = 0, dv = 0;
  double dq_allowed = 0, dk_allowed = 0, dv_allowed = 0;
};

// Compares the gradients of a problem with those by plain kernels in double, from the definition. Empty, or where they
// differ by more than the contract allows [16]: twice the error of plain attention, with S, P and O rounded to the
// input type (together, and each by itself), and two units in the last place; dsink by what the rounding of O and LSE
// makes of its terms. Gradients of rows that see no key, of keys that no row sees, and of rows and keys that belong to
// no sequence, are exactly 0 [5, 8]. Of a problem with more than `most_products` multiplications in Q K^T and P V, only
// some of the pairs of a sequence and a key head are compared: spread over all, by `seed`, with the last one among
// them.
std::string compare_gradients(const DeviceView& view, double most_products, uint64_t seed,
                              GradientErrors* errors = nullptr);

}  // namespace tandem::gpu_test
