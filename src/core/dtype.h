#pragma once

#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace tandem {

// Element types, with the numbers of tandem.h.
enum class DType : int32_t { kNone = 0, kFp64 = 1, kFp32 = 2, kFp16 = 3, kBf16 = 4, kE4m3 = 5, kE5m2 = 6, kInt32 = 7 };

const char* dtype_name(DType dtype);  // "bf16"

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFp64: return 8;
    case DType::kFp32:
    case DType::kInt32: return 4;
    case DType::kFp16:
    case DType::kBf16: return 2;
    case DType::kE4m3:
    case DType::kE5m2: return 1;
    default: return 0;
  }
}

constexpr bool is_fp8(DType dtype) {
  return dtype == DType::kE4m3 || dtype == DType::kE5m2;
}
constexpr bool is_16bit(DType dtype) {
  return dtype == DType::kFp16 || dtype == DType::kBf16;
}
constexpr bool is_float(DType dtype) {
  return dtype >= DType::kFp64 && dtype <= DType::kE5m2;
}

// Storage types of the formats that C++17 lacks: their bits, nothing else. g++ 12 has no __bf16 in C++.
struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

// Conversions of single values: exact towards fp32, round to nearest even from it. Overflow gives infinity, in E4M3
// (which has none) NaN; NaN stays NaN. Vectors of them are converted by the backends.
float to_float(Fp16 value);
float to_float(Bf16 value);
float to_float(E4m3 value);
float to_float(E5m2 value);
Fp16 to_fp16(float value);
Bf16 to_bf16(float value);
E4m3 to_e4m3(float value);
E5m2 to_e5m2(float value);

// Reads or writes element `index` of an array of `dtype`. A double is rounded once, straight to the target type (going
// through fp32 would round twice). Slow: for the reference, tests and tools.
double load_element(const void* data, DType dtype, int64_t index);
void store_element(void* data, DType dtype, int64_t index, double value);

}  // namespace tandem
