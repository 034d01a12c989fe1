#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tandem/tandem.h"

// Element types of tandem.h: sizes, names and single values. C++17 has no 16-bit and 8-bit floating-point types.
namespace tandem::cli {

int64_t dtype_bytes(int32_t dtype);
bool is_fp8(int32_t dtype);
int32_t dtype_from_name(const std::string& name);  // "bf16" -> TANDEM_BF16; TANDEM_DTYPE_NONE if unknown

double load_element(const void* data, int32_t dtype, int64_t index);
void store_element(void* data, int32_t dtype, int64_t index, double value);  // rounds once, to nearest even

// The value that storing in `dtype` leaves.
double round_to(int32_t dtype, double value);

// Distance between neighbouring values of `dtype` at `magnitude` (at the smallest normal number, if that is larger).
double unit_in_last_place(int32_t dtype, double magnitude);

}  // namespace tandem::cli
