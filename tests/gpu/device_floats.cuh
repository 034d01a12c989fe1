#pragma once

#include <cmath>
#include <cstdint>

#include "tandem/tandem.h"

// 16-bit types by their definition, without the library's conversions and the toolkit's.
namespace tandem::gpu_test {

__host__ __device__ inline float bits_to_float(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } both = {bits};
  return both.value;
}

__host__ __device__ inline uint32_t float_to_bits(float value) {
  union {
    float value;
    uint32_t bits;
  } both = {value};
  return both.bits;
}

__host__ __device__ inline float from_16bit(int32_t dtype, uint16_t bits) {
  if (dtype == TANDEM_BF16) return bits_to_float(static_cast<uint32_t>(bits) << 16);
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const bool finite = (bits & 0x7c00) != 0x7c00;
  const float value = finite ? bits_to_float(magnitude) * 0x1p112f : bits_to_float(magnitude | 0x7f800000);
  return bits_to_float(float_to_bits(value) | sign);
}

// To nearest even, in the range of the type.
__host__ __device__ inline double round_to_16bit(int32_t dtype, double value) {
  if (value == 0 || !(fabs(value) < INFINITY)) return value;
  const bool bf16 = dtype == TANDEM_BF16;
  const int exponent = max(ilogb(value), bf16 ? -126 : -14);
  const int last_place = exponent - (bf16 ? 7 : 10);
  const double rounded = ldexp(rint(ldexp(value, -last_place)), last_place);
  if (fabs(rounded) > (bf16 ? 0x1.fep127 : 65504.0)) return copysign(INFINITY, value);
  return rounded;
}

// `value` is already rounded.
__host__ __device__ inline uint16_t to_16bit(int32_t dtype, double value) {
  if (isnan(value)) return 0x7fff;
  const uint32_t wide = float_to_bits(static_cast<float>(value));
  if (dtype == TANDEM_BF16) return static_cast<uint16_t>(wide >> 16);
  const uint32_t sign = wide >> 16 & 0x8000;
  const double magnitude = fabs(value);
  if (magnitude > 65504.0) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint32_t>(magnitude * 0x1p24));
  const uint32_t narrow = (wide & 0x7fffffff) - (112u << 23);  // the exponent's bias: 127 to 15
  return static_cast<uint16_t>(sign | narrow >> 13);
}

// One unit in the last place at this magnitude.
inline double ulp_of(int32_t dtype, double magnitude) {
  const bool fp32 = dtype == TANDEM_FP32;
  const int bits = fp32 ? 23 : dtype == TANDEM_BF16 ? 7 : 10;
  const int min_exponent = dtype == TANDEM_FP16 ? -14 : -126;
  const int exponent = magnitude > 0 ? std::ilogb(magnitude) : min_exponent;
  return std::ldexp(1.0, (exponent > min_exponent ? exponent : min_exponent) - bits);
}

}  // namespace tandem::gpu_test
