#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"

// Exchange inside a warp. All 32 threads call together. PTX: shfl.sync, vote.sync, bar.warp.sync (6.0).
namespace tandem::sm90::ptx {

// The value of lane (own lane ^ mask), 0 <= mask < 32.
TANDEM_DEVICE float shuffle_xor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
TANDEM_DEVICE uint32_t shuffle_xor(uint32_t value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

// The value of lane `source`, 0 <= source < 32; it may differ from lane to lane.
TANDEM_DEVICE float shuffle_index(float value, int source) {
  return __shfl_sync(0xffffffffu, value, source);
}
TANDEM_DEVICE uint32_t shuffle_index(uint32_t value, int source) {
  return __shfl_sync(0xffffffffu, value, source);
}

TANDEM_DEVICE bool any_sync(bool predicate) {
  return __any_sync(0xffffffffu, predicate) != 0;
}
TANDEM_DEVICE bool all_sync(bool predicate) {
  return __all_sync(0xffffffffu, predicate) != 0;
}
// Bit i: lane i's predicate.
TANDEM_DEVICE uint32_t ballot_sync(bool predicate) {
  return __ballot_sync(0xffffffffu, predicate);
}

// Orders memory accesses among the warp's threads: those before, of any lane, are seen by all lanes after.
TANDEM_DEVICE void warp_sync() {
  __syncwarp();
}

}  // namespace tandem::sm90::ptx
