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

// Keys past the used length: what P and dS of 0 were multiplied by may have been a NaN.
template <int kRegisters>
TANDEM_DEVICE void clear_unused(float (&accumulator)[kRegisters], int used) {
  if (used >= kFragmentRows) return;
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    if (fragment_row(half_of(i)) >= used) accumulator[i] = 0.0f;
  }
}

// The gradient of the tile's keys 64 group to 64 group + 63, `scale` times the sum, to its part of `place`.
template <typename Traits, typename Tile, int kRegisters>
TANDEM_DEVICE void write_gradient(float (&sum)[kRegisters], const TileKeyRange& keys, uint32_t place, int group,
                                  float scale) {
  clear_unused(sum, keys.k_len - keys.first_key - group * 64);
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
