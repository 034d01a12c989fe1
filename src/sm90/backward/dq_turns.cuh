#pragma once

#include <cstdint>

#include "sm90/backward/params.h"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/ptx/warp.cuh"

// Deterministic: the order in which the n_blocks of a head add to an m_block's dQ is from the last to the first, that
// in which their tiles are drawn. A turn is the number of the n_block that adds next. Each consumer warp waits for its
// turn under a step's products, before it sends its part of dQ, and passes it on to the n_block before when it takes
// the next step's: by then the addition has been done, as a rule, and the wait for that costs nothing. docs/SCHEDULE.md
// has the argument that nobody waits for ever.
//
// The additions are the copy engine's, in the async proxy; turns are read and written with ordinary loads and stores.
// That a bulk operation has completed makes what it wrote visible to the thread that waits for that [PTX ISA, Async
// proxy: completion is followed by an implicit proxy fence], so its release hands the sums on. bulk_wait_read() would
// not do: it says that shared memory has been read, not that anything has been added. Who has acquired a turn calls
// fence_proxy_async(), so that its own addition, in the async proxy again, comes after what it has seen.
namespace tandem::sm90 {

TANDEM_DEVICE bool is_deterministic(const BackwardParams& params) {
  return params.dq_turns != nullptr;
}

template <typename Traits>
TANDEM_DEVICE uint32_t n_block_of(BackwardSlot<Traits> slot) {
  return static_cast<uint32_t>(slot.keys().first_key / Traits::kBlockN);
}

// This warp among those of both consumers.
TANDEM_DEVICE uint32_t consumer_warp() {
  return static_cast<uint32_t>(ptx::thread_rank_anew()) / ptx::kWarpThreads - 4;
}

TANDEM_DEVICE uint32_t* turn_of(const BackwardParams& params, int q_block) {
  return params.dq_turns + (int64_t{q_block} * kConsumerWarps + consumer_warp());
}

// Where the warp keeps the q_block whose turn it has yet to pass on. PERF: in shared memory, for want of registers.
template <typename Traits>
TANDEM_DEVICE uint32_t turn_place() {
  return Traits::kDqTurns + consumer_warp() * 4;
}

// A whole warp, before its first tile.
template <typename Traits>
TANDEM_DEVICE void begin_turns() {
  if (ptx::lane_index() == 0) ptx::store_shared(turn_place<Traits>(), int{kSpareTurns});
}

// The lane that sends: until what it has sent has been added; then the n_block before may add.
template <typename Traits>
TANDEM_DEVICE void pass_dq_turn(const BackwardParams& params, uint32_t own) {
  ptx::bulk_wait<0>();
  ptx::store_release(turn_of(params, ptx::load_shared<int>(turn_place<Traits>())), own - 1);
}

// A whole warp, before its first lane sends: until all n_blocks after the tile's have added theirs. PERF: all lanes
// wait, so that ptxas is sure that the warp stays together; at headdim 64 it serializes products unless one lane does.
template <typename Traits>
TANDEM_DEVICE void take_dq_turn(const BackwardParams& params, BackwardSlot<Traits> slot, int q_block) {
  if (Traits::kLateP && ptx::lane_index() != 0) return;
  const uint32_t own = n_block_of(slot);
  if (ptx::lane_index() == 0) pass_dq_turn<Traits>(params, own);
  while (ptx::load_acquire(turn_of(params, q_block)) != own) {
  }
  if (ptx::lane_index() != 0) return;
  ptx::fence_proxy_async();
  ptx::store_shared(turn_place<Traits>(), q_block);
}

// A whole warp, when it has sent the last of a tile.
template <typename Traits>
TANDEM_DEVICE void finish_turns(const BackwardParams& params, BackwardSlot<Traits> slot) {
  if (!is_deterministic(params) || ptx::lane_index() != 0) return;
  pass_dq_turn<Traits>(params, n_block_of(slot));
  ptx::store_shared(turn_place<Traits>(), int{kSpareTurns});
}

}  // namespace tandem::sm90
