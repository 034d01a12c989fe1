#pragma once

#include "sm90/forward/consume.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/produce.cuh"
#include "sm90/forward/traits.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/setmaxnreg.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"

// Attention, forward: O = softmax(scale Q K^T) V, and LSE, as an online softmax over key blocks.
//
// A persistent block has one producer warpgroup, whose warps only move data, and two to four consumer warpgroups of 64
// query rows each. A work tile is one m_block of one head; a block draws the next from a counter while it works on this
// one.
//
//   load thread   | K2 | K1 V2 | K0 V1 | V0 | the next tile's K ...                 TMA, as stages fall free
//   consumer 0    | S2 | softmax 2 | S1 PV2 | softmax 1 | S0 PV1 | softmax 0 | S' PV0 | O to shared memory | ...
//   consumer 1         | S2 | softmax 2 | S1 PV2 | softmax 1 | S0 PV1 | softmax 0 | S' PV0 | O ...
//   store warp                                                                                             | O
//
// The consumers take turns on the tensor cores (ping-pong): S of a block and P V of the block before are issued
// together, and the softmax of one consumer runs under the products of the others; inside each, softmax i begins under
// P V of block i + 1. Where Q has two stages, S' is the first S of the next tile. traits.h has the barrier table,
// docs/SCHEDULE.md the budgets.
//
// traits.h, tiles.h  what an instance is       schedule.cuh  scheduler warp    consume.cuh  a consumer's tiles
// params.h           one launch's problem      load.cuh      load thread       attend.cuh   a tile's key blocks
// work.cuh           what a work tile is       clean.cuh     clean-up warp     finish.cuh   the end of a tile
// *_fp8, two_levels, scales: e4m3              transpose.cuh    in its place   *softmax*    of a key block
//                                              store.cuh     store warp
namespace tandem::sm90 {

template <typename Traits>
TANDEM_DEVICE void init_barriers() {
  constexpr int kConsumerWarps = Traits::kConsumers * 4;
  for (int q = 0; q < Traits::kQPlaces; ++q) {
    ptx::mbarrier_init(barrier_at(Traits::kQFull, q), 1);
    ptx::mbarrier_init(barrier_at(Traits::kQEmpty, q), 1);
    ptx::mbarrier_init(barrier_at(Traits::kOFull, q), 4);
  }
  for (int stage = 0; stage < Traits::kKStages; ++stage) {
    ptx::mbarrier_init(barrier_at(Traits::kKFull, stage), 1);
    ptx::mbarrier_init(barrier_at(Traits::kKEmpty, stage), kConsumerWarps);
  }
  for (int stage = 0; stage < Traits::kVStages; ++stage) {
    ptx::mbarrier_init(barrier_at(Traits::kVFull, stage), 1);
    ptx::mbarrier_init(barrier_at(Traits::kVEmpty, stage), kConsumerWarps);
  }
  for (int stage = 0; stage < Traits::kLandingStages; ++stage) {
    ptx::mbarrier_init(barrier_at(Traits::kVLanded, stage), 1);
    if constexpr (Traits::kTransposes) ptx::mbarrier_init(barrier_at(Traits::kVTaken, stage), 1);
  }
  for (int slot = 0; slot < Traits::kTileStages; ++slot) {
    ptx::mbarrier_init(barrier_at(Traits::kTileFull, slot), 1);
    ptx::mbarrier_init(barrier_at(Traits::kTileEmpty, slot), kConsumerWarps + 3);
  }
  ptx::fence_mbarrier_init();
}

// e4m3: the columns of ones, which nobody writes again. All threads; a barrier follows.
template <typename Traits>
TANDEM_DEVICE void write_ones() {
  constexpr uint32_t kOnesWord = 0x38383838;
  constexpr int kWords = Traits::kOnes * Traits::kBlockN / 4;
  constexpr int kPlaces = Traits::kOnesApart ? 1 : Traits::kVStages;
  constexpr uint32_t kFirst = Traits::kOnesApart ? Traits::kSmemOnes : Traits::kSmemV + Traits::VTile::kBytes;
  for (int i = ptx::thread_rank(); i < kPlaces * kWords; i += Traits::kThreads) {
    const uint32_t offset = static_cast<uint32_t>(i / kWords) * Traits::kVStageBytes + i % kWords * 4;
    ptx::store_shared(kFirst + offset, kOnesWord);
  }
  ptx::fence_proxy_async_shared();
}

template <typename Traits>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Traits::kThreads, 1)
    forward_kernel(const TANDEM_GRID_CONSTANT ForwardParams params) {
  static_assert(Traits::kBase == ptx::kDynamicSharedBase);
  if (ptx::thread_rank() == 0) {
    ptx::check_dynamic_shared_base();
    ptx::prefetch_tensor_map(&params.q);
    ptx::prefetch_tensor_map(&params.k);
    ptx::prefetch_tensor_map(&params.v);
    ptx::prefetch_tensor_map(&params.out);
    init_barriers<Traits>();
  }
  if constexpr (Traits::kFp8) write_ones<Traits>();
  ptx::block_sync();
  const int warpgroup = ptx::warpgroup_index();
  if (warpgroup == 0) {
    ptx::setmaxnreg_decrease<Traits::kProducerRegisters>();
    produce<Traits>(params);
  } else {
    ptx::setmaxnreg_increase<Traits::kConsumerRegisters>();
    consume<Traits>(params, warpgroup - 1);
  }
}

}  // namespace tandem::sm90
