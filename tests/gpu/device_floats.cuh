#pragma once

#include <cmath>
#include <cstdint>

#include "tandem/tandem.h"

// 16-bit types and e4m3 by their definition, without the library's conversions and the toolkit's.
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

__host__ __device__ inline float from_e4m3(uint8_t bits) {
  const int magnitude = bits & 0x7f;
  const int exponent = magnitude >> 3;
  if (magnitude == 0x7f) return NAN;
  const float value = exponent > 0 ? ldexpf(static_cast<float>(8 + magnitude % 8), exponent - 10)
                                   : ldexpf(static_cast<float>(magnitude), -9);
  return (bits & 0x80) != 0 ? -value : value;
}

// To nearest even; beyond the range, NaN.
__host__ __device__ inline double round_to_e4m3(double value) {
  if (value == 0 || !(fabs(value) < INFINITY)) return value;
  const int last_place = max(ilogb(value), -6) - 3;
  const double rounded = ldexp(rint(ldexp(value, -last_place)), last_place);
  return fabs(rounded) > 448 ? NAN : rounded;
}

// `value` is already rounded.
__host__ __device__ inline uint8_t to_e4m3(double value) {
  if (!(fabs(value) <= 448)) return 0x7f;
  const uint8_t sign = value < 0 ? 0x80 : 0;
  const double magnitude = fabs(value);
  if (magnitude < 0x1p-6) return static_cast<uint8_t>(sign | static_cast<int>(magnitude * 0x1p9));
  const int exponent = ilogb(magnitude);
  return static_cast<uint8_t>(sign | ((exponent + 7) << 3) | (static_cast<int>(ldexp(magnitude, 3 - exponent)) - 8));
}

__host__ __device__ inline int64_t input_bytes(int32_t dtype) {
  return dtype == TANDEM_E4M3 ? 1 : 2;
}
__host__ __device__ inline float input_element(int32_t dtype, const void* data, int64_t element) {
  return dtype == TANDEM_E4M3 ? from_e4m3(static_cast<const uint8_t*>(data)[element])
                              : from_16bit(dtype, static_cast<const uint16_t*>(data)[element]);
}
__host__ __device__ inline double round_to_input(int32_t dtype, double value) {
  return dtype == TANDEM_E4M3 ? round_to_e4m3(value) : round_to_16bit(dtype, value);
}
// `value` is already rounded.
__host__ __device__ inline void set_input_element(int32_t dtype, void* data, int64_t element, double value) {
  if (dtype == TANDEM_E4M3) {
    static_cast<uint8_t*>(data)[element] = to_e4m3(value);
  } else {
    static_cast<uint16_t*>(data)[element] = to_16bit(dtype, value);
  }
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
