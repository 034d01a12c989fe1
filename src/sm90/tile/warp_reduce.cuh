#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/warp.cuh"

namespace tandem::sm90 {

// Of all lanes' values, in every lane. A whole warp.
TANDEM_DEVICE int min_over_warp(int value) {
  TANDEM_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = min_of(value, static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(value), lanes)));
  }
  return value;
}
TANDEM_DEVICE int max_over_warp(int value) {
  return -min_over_warp(-value);
}

}  // namespace tandem::sm90
