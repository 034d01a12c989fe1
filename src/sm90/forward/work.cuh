#pragma once

#include <cstdint>

#include "core/block_range.h"
#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/tile/pipeline.cuh"

// Work tiles, from the scheduler thread, which draws them, to everybody else.
namespace tandem::sm90 {

// One m_block of one head, and the n_blocks it visits: [begin, end), of which [full_begin, full_end) need no mask.
struct ForwardTile {
  int m_block, head, batch, valid;  // valid 0: there is no more work
  int begin, end, full_begin, full_end;
};

template <typename Traits>
TANDEM_DEVICE ForwardTile make_tile(const ForwardParams& params, int64_t index) {
  if (index >= params.tiles) return {};
  const WorkTile work = work_tile(index, params.m_blocks, params.nheads_q, params.batch, params.order);
  const int64_t first_row = work.m_block * Traits::kBlockM;
  const TileBounds bounds =
      tile_bounds(params.mask, first_row, first_row + Traits::kBlockM, params.seqlen_q, params.seqlen_k);
  const BlockRange range = block_range(bounds, Traits::kBlockN);
  return {static_cast<int>(work.m_block),     static_cast<int>(work.head),
          static_cast<int>(work.batch),       1,
          static_cast<int>(range.begin),      static_cast<int>(range.end),
          static_cast<int>(range.full_begin), static_cast<int>(range.full_end)};
}

// A slot holds a ForwardTile as two words of 16 bytes.
struct FourInts {
  int x, y, z, w;
};

template <typename Traits>
TANDEM_DEVICE void send_tile(const ForwardTile& tile, PipelineState<Traits::kTileStages> pipe) {
  const uint32_t slot = Traits::kTileSlots + static_cast<uint32_t>(pipe.index) * Traits::kTileSlotBytes;
  ptx::store_shared(slot, FourInts{tile.m_block, tile.head, tile.batch, tile.valid});
  ptx::store_shared(slot + 16, FourInts{tile.begin, tile.end, tile.full_begin, tile.full_end});
  ptx::mbarrier_arrive(barrier_at(Traits::kTileFull, pipe.index));
}

// One thread. A block's first tile is its own number; it draws the next when everybody has begun the last, late enough
// for the counter to balance the blocks, early enough for the loads to run ahead.
template <typename Traits>
TANDEM_DEVICE void schedule_tiles(const ForwardParams& params) {
  PipelineState<Traits::kTileStages> pipe;
  int64_t index = ptx::block_index();
  for (;;) {
    const ForwardTile tile = make_tile<Traits>(params, index);
    send_tile<Traits>(tile, pipe);
    if (!tile.valid) return;
    pipe.advance();
    acquire(Traits::kTileEmpty, pipe);
    index = static_cast<int64_t>(ptx::atomic_add(params.next_tile, 1)) + ptx::grid_size();
  }
}

// The caller releases the slot.
template <typename Traits>
TANDEM_DEVICE ForwardTile receive_tile(PipelineState<Traits::kTileStages> pipe) {
  const uint32_t slot = Traits::kTileSlots + static_cast<uint32_t>(pipe.index) * Traits::kTileSlotBytes;
  wait(Traits::kTileFull, pipe);
  const FourInts where = ptx::load_shared<FourInts>(slot);
  const FourInts blocks = ptx::load_shared<FourInts>(slot + 16);
  return {where.x, where.y, where.z, where.w, blocks.x, blocks.y, blocks.z, blocks.w};
}

}  // namespace tandem::sm90
