#include "core/dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem {
namespace {

// A binary floating-point format of at most 16 bits: sign, exponent, mantissa, from the top.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // false: E4M3, where only the pattern of all ones is NaN

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int min_exponent() const { return 1 - bias(); }  // of normal values
  constexpr int sign_shift() const { return exponent_bits + mantissa_bits; }
  constexpr uint32_t all_ones() const { return (1u << sign_shift()) - 1; }
  constexpr uint32_t infinity() const { return all_ones() ^ ((1u << mantissa_bits) - 1); }
  constexpr uint32_t nan() const { return has_infinity ? infinity() | (1u << (mantissa_bits - 1)) : all_ones(); }
  constexpr uint32_t overflow() const { return has_infinity ? infinity() : nan(); }
};

constexpr Format kFp16Format{5, 10, true};
constexpr Format kBf16Format{8, 7, true};
constexpr Format kE4m3Format{4, 3, false};
constexpr Format kE5m2Format{5, 2, true};

constexpr int kDoubleMantissaBits = 52;
constexpr int kDoubleBias = 1023;

uint64_t shift_right_to_nearest_even(uint64_t value, int shift) {
  const uint64_t quotient = value >> shift;
  const uint64_t remainder = value & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  return quotient + (remainder > half || (remainder == half && (quotient & 1)));
}

uint32_t encode(Format format, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << format.sign_shift();
  if (std::isnan(value)) return sign | format.nan();
  if (std::isinf(value)) return sign | format.overflow();

  const int exponent = static_cast<int>(bits >> kDoubleMantissaBits & 0x7ff) - kDoubleBias;
  const int below_normal = std::max(0, format.min_exponent() - exponent);
  const int shift = kDoubleMantissaBits - format.mantissa_bits + below_normal;
  if (shift > kDoubleMantissaBits + 1) return sign;  // under half of the smallest subnormal (or a subnormal double)

  const uint64_t implicit_one = uint64_t{1} << kDoubleMantissaBits;
  const uint64_t significand = (bits & (implicit_one - 1)) | implicit_one;
  // Biased exponent and mantissa as one integer: a carry out of the mantissa moves into the exponent by itself. The
  // significand's leading one stands for the last 1 of a normal number's exponent.
  const uint64_t exponent_below = below_normal ? 0 : static_cast<uint64_t>(exponent - format.min_exponent());
  const uint64_t magnitude = (exponent_below << format.mantissa_bits) + shift_right_to_nearest_even(significand, shift);
  return sign | static_cast<uint32_t>(std::min<uint64_t>(magnitude, format.overflow()));
}

double decode(Format format, uint32_t bits) {
  const bool negative = bits >> format.sign_shift() & 1;
  const uint32_t magnitude = bits & format.all_ones();
  const int biased_exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const int mantissa = static_cast<int>(magnitude & ((1u << format.mantissa_bits) - 1));

  double value;
  if (format.has_infinity ? magnitude > format.infinity() : magnitude == format.nan()) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (format.has_infinity && magnitude == format.infinity()) {
    value = std::numeric_limits<double>::infinity();
  } else if (biased_exponent == 0) {
    value = std::ldexp(mantissa, format.min_exponent() - format.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1 << format.mantissa_bits), biased_exponent - format.bias() - format.mantissa_bits);
  }
  return negative ? -value : value;
}

}  // namespace

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kNone: return "none";
    case DType::kFp64: return "fp64";
    case DType::kFp32: return "fp32";
    case DType::kFp16: return "fp16";
    case DType::kBf16: return "bf16";
    case DType::kE4m3: return "e4m3";
    case DType::kE5m2: return "e5m2";
    case DType::kInt32: return "int32";
  }
  return "unknown dtype";
}

float to_float(Fp16 value) {
  return static_cast<float>(decode(kFp16Format, value.bits));
}
float to_float(E4m3 value) {
  return static_cast<float>(decode(kE4m3Format, value.bits));
}
float to_float(E5m2 value) {
  return static_cast<float>(decode(kE5m2Format, value.bits));
}

float to_float(Bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

Fp16 to_fp16(float value) {
  return {static_cast<uint16_t>(encode(kFp16Format, value))};
}
Bf16 to_bf16(float value) {
  return {static_cast<uint16_t>(encode(kBf16Format, value))};
}
E4m3 to_e4m3(float value) {
  return {static_cast<uint8_t>(encode(kE4m3Format, value))};
}
E5m2 to_e5m2(float value) {
  return {static_cast<uint8_t>(encode(kE5m2Format, value))};
}

double load_element(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kFp64: return static_cast<const double*>(data)[index];
    case DType::kFp32: return static_cast<const float*>(data)[index];
    case DType::kFp16: return to_float(static_cast<const Fp16*>(data)[index]);
    case DType::kBf16: return to_float(static_cast<const Bf16*>(data)[index]);
    case DType::kE4m3: return to_float(static_cast<const E4m3*>(data)[index]);
    case DType::kE5m2: return to_float(static_cast<const E5m2*>(data)[index]);
    case DType::kInt32: return static_cast<const int32_t*>(data)[index];
    case DType::kNone: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void store_element(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kFp64: static_cast<double*>(data)[index] = value; break;
    case DType::kFp32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::kFp16: static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(encode(kFp16Format, value)); break;
    case DType::kBf16: static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(encode(kBf16Format, value)); break;
    case DType::kE4m3: static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(encode(kE4m3Format, value)); break;
    case DType::kE5m2: static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(encode(kE5m2Format, value)); break;
    case DType::kInt32: static_cast<int32_t*>(data)[index] = static_cast<int32_t>(value); break;
    case DType::kNone: break;
  }
}

}  // namespace tandem
