#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace tandem {

// Division of numbers below 2^31 by a number that the host knows, as a multiplication: kernels take a fifth of a
// division's instructions. Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), theorem
// 4.2: with 2^shift >= divisor and multiplier = ceil(2^(31 + shift) / divisor), n / divisor is exact for n < 2^31.
struct Divisor {
  uint32_t divisor = 1;
  uint32_t multiplier = uint32_t{1} << 31;
  uint32_t shift = 0;

  constexpr Divisor() = default;
  // 1 <= value < 2^31
  explicit constexpr Divisor(uint32_t value) : divisor(value) {
    while ((uint64_t{1} << shift) < value) ++shift;
    const uint64_t power = uint64_t{1} << (31 + shift);
    multiplier = static_cast<uint32_t>(power / value + (power % value != 0 ? 1 : 0));
  }

  TANDEM_HD constexpr uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * multiplier >> 31 >> shift);
  }
};

}  // namespace tandem
