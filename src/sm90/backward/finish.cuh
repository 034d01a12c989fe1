#pragma once

#include <cstdint>

#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"

// The end of a work tile: dK and dV to where K and V were, for the store warp.
namespace tandem::sm90 {

// Both consumers: all products that read K and V are done.
TANDEM_DEVICE void meet_at_the_end() {
  ptx::named_barrier_sync(kGradsBarrier, 2 * ptx::kWarpgroupThreads);
}

// Keys that no row sees: what P and dS of 0 were multiplied by may have been a NaN.
template <int kRegisters>
TANDEM_DEVICE void clear_unseen_keys(float (&accumulator)[kRegisters], const SeenGroup& seen) {
  if ((seen.bits[0] & seen.bits[1]) == 0xffffffffu) return;
  // A thread's second row is 8 after its first, in the same word.
  const uint32_t own = (fragment_row(0) < 32 ? seen.bits[0] : seen.bits[1]) >> fragment_row(0) % 32;
  const bool sees[2] = {(own & 1) != 0, (own >> 8 & 1) != 0};
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    if (!sees[half_of(i)]) accumulator[i] = 0.0f;
  }
}

// The gradient of the tile's keys 64 group to 64 group + 63, `scale` times the sum, to its part of `place`.
template <typename Traits, typename Tile, int kRegisters>
TANDEM_DEVICE void write_gradient(float (&sum)[kRegisters], BackwardSlot<Traits> slot, uint32_t place, int group,
                                  float scale) {
  clear_unseen_keys(sum, slot.seen_of(group));
  const float scales[2] = {scale, scale};
  store_accumulator<typename Traits::Element, Tile>(place + static_cast<uint32_t>(group) * Tile::kBytes, sum, scales);
}

// The same where there is no sum. A whole warpgroup.
template <typename Tile>
TANDEM_DEVICE void clear_gradient(uint32_t place, int group) {
  struct Zeros {
    uint32_t word[4];
  };
  const uint32_t begin = place + static_cast<uint32_t>(group) * Tile::kBytes;
  const uint32_t end = begin + Tile::kBytes;
  const uint32_t thread = static_cast<uint32_t>(ptx::thread_rank() % ptx::kWarpgroupThreads);
  TANDEM_NO_UNROLL
  for (uint32_t at = begin + thread * 16; at < end; at += ptx::kWarpgroupThreads * 16) ptx::store_shared(at, Zeros{});
}

// To the store warp. A whole warp.
template <typename Traits>
TANDEM_DEVICE void hand_over_gradients() {
  ptx::fence_proxy_async_shared();
  ptx::warp_sync();
  ptx::mbarrier_arrive_if(Traits::kGradsFull, ptx::lane_index() == 0);
}

}  // namespace tandem::sm90
