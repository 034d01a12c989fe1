#include "float_formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::cli {
namespace {

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // E4M3 spends the top exponent on numbers; only all ones is NaN

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int min_exponent() const { return 1 - bias(); }
  uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  uint32_t exponent_mask() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  uint32_t mantissa_mask() const { return (1u << mantissa_bits) - 1; }
  uint32_t nan_bits() const { return exponent_mask() | mantissa_mask(); }
  uint32_t overflow_bits() const { return has_infinity ? exponent_mask() : nan_bits(); }
};

FloatFormat format_of(int32_t dtype) {
  switch (dtype) {
    case TANDEM_FP64: return {11, 52, true};
    case TANDEM_FP32: return {8, 23, true};
    case TANDEM_FP16: return {5, 10, true};
    case TANDEM_BF16: return {8, 7, true};
    case TANDEM_E4M3: return {4, 3, false};
    default: return {5, 2, true};  // TANDEM_E5M2
  }
}

uint32_t encode(const FloatFormat& format, double value) {
  const uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  if (std::isnan(value)) return sign | format.nan_bits();
  if (std::isinf(value)) return sign | format.overflow_bits();
  if (value == 0) return sign;
  int exponent;
  std::frexp(value, &exponent);  // |value| = f * 2^exponent, 0.5 <= f < 1
  exponent = std::max(exponent - 1, format.min_exponent());
  const double quanta = std::nearbyint(std::ldexp(std::fabs(value), format.mantissa_bits - exponent));
  // The implicit leading one of `quanta` carries into the exponent field; so does rounding up to a power of two.
  const double biased = exponent + format.bias() - 1;
  const double bits = std::ldexp(biased, format.mantissa_bits) + quanta;
  return sign | static_cast<uint32_t>(std::min<double>(bits, format.overflow_bits()));
}

double decode(const FloatFormat& format, uint32_t bits) {
  const uint32_t magnitude = bits & ~format.sign_bit();
  const double sign = bits & format.sign_bit() ? -1.0 : 1.0;
  if (format.has_infinity && magnitude == format.exponent_mask()) return sign * HUGE_VAL;
  if (magnitude > format.exponent_mask() && (format.has_infinity || magnitude == format.nan_bits())) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int field = static_cast<int>(magnitude >> format.mantissa_bits);
  const double mantissa =
      (magnitude & format.mantissa_mask()) + (field > 0 ? std::ldexp(1.0, format.mantissa_bits) : 0);
  return sign * std::ldexp(mantissa, std::max(field, 1) - format.bias() - format.mantissa_bits);
}

template <class T>
T load_as(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void store_as(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

int64_t dtype_bytes(int32_t dtype) {
  switch (dtype) {
    case TANDEM_FP64: return 8;
    case TANDEM_FP32:
    case TANDEM_INT32: return 4;
    case TANDEM_FP16:
    case TANDEM_BF16: return 2;
    case TANDEM_E4M3:
    case TANDEM_E5M2: return 1;
    default: return 0;
  }
}

bool is_fp8(int32_t dtype) {
  return dtype == TANDEM_E4M3 || dtype == TANDEM_E5M2;
}

int32_t dtype_from_name(const std::string& name) {
  for (int32_t dtype = TANDEM_FP64; dtype <= TANDEM_INT32; ++dtype) {
    if (name == tandem_dtype_name(dtype)) return dtype;
  }
  return TANDEM_DTYPE_NONE;
}

double load_element(const void* data, int32_t dtype, int64_t index) {
  switch (dtype) {
    case TANDEM_FP64: return load_as<double>(data, index);
    case TANDEM_FP32: return load_as<float>(data, index);
    case TANDEM_INT32: return load_as<int32_t>(data, index);
    case TANDEM_FP16:
    case TANDEM_BF16: return decode(format_of(dtype), load_as<uint16_t>(data, index));
    default: return decode(format_of(dtype), load_as<uint8_t>(data, index));
  }
}

void store_element(void* data, int32_t dtype, int64_t index, double value) {
  switch (dtype) {
    case TANDEM_FP64: return store_as(data, index, value);
    case TANDEM_FP32: return store_as(data, index, static_cast<float>(value));
    case TANDEM_INT32: return store_as(data, index, static_cast<int32_t>(value));
    case TANDEM_FP16:
    case TANDEM_BF16: return store_as(data, index, static_cast<uint16_t>(encode(format_of(dtype), value)));
    default: return store_as(data, index, static_cast<uint8_t>(encode(format_of(dtype), value)));
  }
}

double round_to(int32_t dtype, double value) {
  if (dtype == TANDEM_FP64) return value;
  if (dtype == TANDEM_FP32) return static_cast<float>(value);
  return decode(format_of(dtype), encode(format_of(dtype), value));
}

double unit_in_last_place(int32_t dtype, double magnitude) {
  const FloatFormat format = format_of(dtype);
  int exponent = format.min_exponent();
  if (magnitude > 0 && std::isfinite(magnitude)) exponent = std::max(exponent, std::ilogb(magnitude));
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

}  // namespace tandem::cli
