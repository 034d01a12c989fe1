#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"

// The two elements that pack2() has put side by side.
namespace tandem::sm90 {

template <typename Element>
TANDEM_DEVICE float low_half(uint32_t word) {
  if constexpr (std::is_same_v<Element, Bf16>) return ptx::bits_to_float(word << 16);
  return ptx::f16_to_float(static_cast<uint16_t>(word));
}
template <typename Element>
TANDEM_DEVICE float high_half(uint32_t word) {
  if constexpr (std::is_same_v<Element, Bf16>) return ptx::bits_to_float(word & 0xffff0000u);
  return ptx::f16_to_float(static_cast<uint16_t>(word >> 16));
}

}  // namespace tandem::sm90
