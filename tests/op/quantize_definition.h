#pragma once

#include <string>
#include <vector>

#include "quantize_case.h"

namespace tandem::optest {

// Empty if what a call wrote is what tandem.h says, in double: each scale the largest magnitude of its group / 448,
// each element the nearest to y / scale, 0 where no row is. Else what is wrong.
std::string definition_fault(const QuantizeCase& test, const Quantized& got);

// N(0, 1), in the order of x_shape().
std::vector<double> random_values(const QuantizeCase& test, uint64_t seed);

QuantizeCase dense_case(int64_t batch, int64_t seqlen, int64_t nheads, int64_t headdim);
QuantizeCase packed_case(std::vector<int32_t> cu_seqlens, int64_t total, int64_t nheads, int64_t headdim);
// Those of the usual embedding.
void add_rotary_tables(QuantizeCase& test, int64_t positions, int64_t pairs);
// Of everything that a call can ask for, in one of these types.
QuantizeCase random_quantize_case(uint64_t seed, const std::vector<int32_t>& dtypes);

}  // namespace tandem::optest
