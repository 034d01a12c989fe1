#include "float_types.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tandem/tandem.h"

namespace tandem::optest {
namespace {

struct Precision {
  int mantissa_bits;
  int min_exponent;  // of normal values
  double max;
};

Precision precision(int32_t dtype) {
  switch (dtype) {
    case TANDEM_FP64: return {52, -1022, std::numeric_limits<double>::max()};
    case TANDEM_FP32: return {23, -126, std::numeric_limits<float>::max()};
    case TANDEM_FP16: return {10, -14, 65504.0};
    case TANDEM_BF16: return {7, -126, 0x1.fep127};
    case TANDEM_E4M3: return {3, -6, 448.0};
    default: throw std::invalid_argument("not a float type of these tests");
  }
}

// Of zero and subnormal numbers, one below all others.
int exponent_of(double magnitude) {
  uint64_t bits;
  std::memcpy(&bits, &magnitude, sizeof bits);
  return static_cast<int>(bits >> 52) - 1023;
}

// Much of the tests' time went into ldexp.
double power_of_two(int exponent) {
  if (exponent < -1022) return std::ldexp(1.0, exponent);
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

template <typename T>
T read(const uint8_t* storage, int64_t index) {
  T value;
  std::memcpy(&value, storage + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void write(uint8_t* storage, int64_t index, T value) {
  std::memcpy(storage + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

float bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t bf16_bits(double rounded) {
  const float value = static_cast<float>(rounded);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16 | (std::isnan(value) ? 0x40 : 0));
}

double fp16_value(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  double value;
  if (exponent == 0x1f) {
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = mantissa * 0x1p-24;
  } else {
    value = (1024 + mantissa) * power_of_two(exponent - 25);
  }
  return bits >> 15 ? -value : value;
}

uint16_t fp16_bits(double rounded) {
  const uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
  if (std::isnan(rounded)) return sign | 0x7e00;
  if (std::isinf(rounded)) return sign | 0x7c00;
  const double magnitude = std::fabs(rounded);
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(magnitude * 0x1p24);
  const int exponent = exponent_of(magnitude);
  const int mantissa = static_cast<int>(magnitude * power_of_two(10 - exponent)) - 1024;
  return sign | static_cast<uint16_t>((exponent + 15) << 10 | mantissa);
}

double e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 0xf;
  const int mantissa = bits & 7;
  double value = exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * power_of_two(exponent - 10);
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<double>::quiet_NaN();
  return bits >> 7 ? -value : value;
}

uint8_t e4m3_bits(double rounded) {
  const uint8_t sign = std::signbit(rounded) ? 0x80 : 0;
  if (!std::isfinite(rounded)) return sign | 0x7f;
  const double magnitude = std::fabs(rounded);
  if (magnitude < 0x1p-6) return sign | static_cast<uint8_t>(magnitude * 0x1p9);
  const int exponent = exponent_of(magnitude);
  const int mantissa = static_cast<int>(magnitude * power_of_two(3 - exponent)) - 8;
  return sign | static_cast<uint8_t>((exponent + 7) << 3 | mantissa);
}

}  // namespace

int64_t element_bytes(int32_t dtype) {
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

double ulp(int32_t dtype, double magnitude) {
  const Precision type = precision(dtype);
  if (!std::isfinite(magnitude)) return std::numeric_limits<double>::infinity();
  return power_of_two(std::max(exponent_of(magnitude), type.min_exponent) - type.mantissa_bits);
}

double round_to(int32_t dtype, double value) {
  if (dtype == TANDEM_FP64) return value;
  if (dtype == TANDEM_FP32) return static_cast<float>(value);
  if (!std::isfinite(value)) return value;
  const double unit = ulp(dtype, std::fabs(value));
  const double rounded = std::nearbyint(value / unit) * unit;  // the default rounding mode: ties to even
  if (std::fabs(rounded) > precision(dtype).max) {
    const double overflow =  // e4m3 has no infinity
        dtype == TANDEM_E4M3 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    return std::copysign(overflow, value);
  }
  return std::copysign(rounded, value);
}

double load(const uint8_t* storage, int32_t dtype, int64_t index) {
  switch (dtype) {
    case TANDEM_FP64: return read<double>(storage, index);
    case TANDEM_FP32: return read<float>(storage, index);
    case TANDEM_FP16: return fp16_value(read<uint16_t>(storage, index));
    case TANDEM_BF16: return bf16_value(read<uint16_t>(storage, index));
    case TANDEM_E4M3: return e4m3_value(read<uint8_t>(storage, index));
    case TANDEM_INT32: return read<int32_t>(storage, index);
    default: throw std::invalid_argument("cannot load this dtype");
  }
}

void store(uint8_t* storage, int32_t dtype, int64_t index, double value) {
  switch (dtype) {
    case TANDEM_FP64: write(storage, index, value); break;
    case TANDEM_FP32: write(storage, index, static_cast<float>(value)); break;
    case TANDEM_FP16: write(storage, index, fp16_bits(round_to(dtype, value))); break;
    case TANDEM_BF16: write(storage, index, bf16_bits(round_to(dtype, value))); break;
    case TANDEM_E4M3: write(storage, index, e4m3_bits(round_to(dtype, value))); break;
    case TANDEM_INT32: write(storage, index, static_cast<int32_t>(value)); break;
    default: throw std::invalid_argument("cannot store this dtype");
  }
}

}  // namespace tandem::optest
