#pragma once

#include <cstdint>
#include <string>

#include "device_view.h"

namespace tandem::gpu_test {

// Compares the results of a problem with attention by plain kernels in double, from the definition. Empty, or where
// they differ by more than the contract allows [16]: O by twice the error of plain attention, with S, P and O rounded
// to the input type (together, and each by itself), and two units in the last place; LSE by 1e-5, or by what a sum of
// headdim products in fp32 loses where they cancel. In e4m3 plain attention rounds P and O, and sums as the fp8 tensor
// cores do; LSE may be off by twice its error more. Rows that see no key, or belong to no sequence, are exact [5, 8].
// Of a large problem about `most_rows` rows of heads are compared, spread over all of it, the last one among them.
std::string compare_with_oracle(const DeviceView& view, int64_t most_rows);

}  // namespace tandem::gpu_test
