#pragma once

#include <cstdint>

#include "core/block_range.h"
#include "core/fp8.h"
#include "core/int_math.h"
#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/forward/params.h"
#include "sm90/forward/row_keys.cuh"
#include "sm90/forward/scales.cuh"
#include "sm90/forward/traits.h"
#include "sm90/forward/visible_keys.cuh"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/load_tile.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/smem_layout.cuh"

// The scheduler warp: draws work tiles, works out which n_blocks they visit, and loads their Q.
namespace tandem::sm90 {

// Where a work tile lies: its sequence and its place there.
struct TileOrigin {
  PackedSequence sequence;  // dense: made up of the batch entry
  int m_block, head, batch;
};

TANDEM_DEVICE int used_length(const int* seqused, int64_t stride, int batch, int length) {
  if (seqused == nullptr) return length;
  return min_of(max_of(ptx::load_global(seqused + batch * stride), 0), length);
}

TANDEM_DEVICE TileOrigin dense_origin(const ForwardParams& params, int index) {
  const BasicWorkTile<int> work = params.dense_work.tile(index);
  TileOrigin origin{};
  origin.sequence.q_rows = params.seqlen_q;
  origin.sequence.q_len = used_length(params.seqused_q, params.seqused_q_stride, work.batch, params.seqlen_q);
  origin.sequence.k_len = used_length(params.seqused_k, params.seqused_k_stride, work.batch, params.seqlen_k);
  origin.sequence.number = work.batch;
  origin.m_block = work.m_block;
  origin.head = work.head;
  origin.batch = work.batch;
  return origin;
}

// The sequences lie in the order of work, so that a block's next tile is never before its last.
TANDEM_DEVICE TileOrigin packed_origin(const ForwardParams& params, int index) {
  const int block = index / params.nheads_q;
  int low = 0;
  int high = params.num_sequences;  // block_begin of low <= block < that of high
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (ptx::load_global(&params.sequences[middle].block_begin) <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const PackedSequence* found = params.sequences + low;
  TileOrigin origin{};
  struct Half {
    int word[4];
  };
  const Half first = ptx::load_global(reinterpret_cast<const Half*>(found));
  const Half second = ptx::load_global(reinterpret_cast<const Half*>(found) + 1);
  origin.sequence = {first.word[0],  first.word[1],  first.word[2],  first.word[3],
                     second.word[0], second.word[1], second.word[2], second.word[3]};
  const uint32_t in_sequence = static_cast<uint32_t>(index - origin.sequence.block_begin * params.nheads_q);
  const uint32_t tiles_per_group =
      static_cast<uint32_t>(origin.sequence.m_blocks) * params.packed_work.heads_per_group.divisor;
  const uint32_t group = in_sequence / tiles_per_group;
  const BasicWorkTile<int> work =
      params.packed_work.tile(group, in_sequence - group * tiles_per_group, origin.sequence.m_blocks);
  origin.m_block = work.m_block;
  origin.head = work.head;
  return origin;
}

// Over the first kLanes lanes, for them.
template <int kLanes>
TANDEM_DEVICE int lanes_min(int value) {
  TANDEM_UNROLL
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = min_of(value, static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(value), distance)));
  }
  return value;
}
template <int kLanes>
TANDEM_DEVICE int lanes_max(int value) {
  return -lanes_min<kLanes>(-value);
}

// The lanes of send_blocks(): one for each consumer, and the next for the tile.
constexpr int kBlockLanes = 8;

// What rows [first_row, first_row + 64) see where the band is narrowed: each lane looks at every 32nd.
template <typename Traits>
TANDEM_DEVICE BasicTileBounds<int> narrowed_bounds(const ForwardParams& params, const TileOrigin& origin, int first_row,
                                                   int lane) {
  const PackedSequence& sequence = origin.sequence;
  BasicTileBounds<int> own;
  for (int row = first_row + lane; row < min_of(first_row + kFragmentRows, sequence.q_len); row += ptx::kWarpThreads) {
    include(own,
            row_keys<Traits>(params, sequence.q_begin, row, sequence.q_len, sequence.k_len, origin.head, origin.batch));
  }
  BasicTileBounds<int> bounds;
  bounds.any_visible = ptx::any_sync(own.any_visible);
  bounds.has_empty = ptx::any_sync(own.has_empty);
  bounds.min_lo = lanes_min<ptx::kWarpThreads>(own.any_visible ? own.min_lo : INT32_MAX);
  bounds.max_lo = lanes_max<ptx::kWarpThreads>(own.any_visible ? own.max_lo : 0);
  bounds.min_hi = lanes_min<ptx::kWarpThreads>(own.any_visible ? own.min_hi : INT32_MAX);
  bounds.max_hi = lanes_max<ptx::kWarpThreads>(own.any_visible ? own.max_hi : 0);
  return bounds;
}

// Lane w < kConsumers: the bounds of consumer w's rows; the other lanes: of all rows of the tile, in closed form.
template <typename Traits>
TANDEM_DEVICE BasicTileBounds<int> lane_bounds(const ForwardParams& params, const TileOrigin& origin, int lane) {
  const int first_row = origin.m_block * Traits::kBlockM;
  const bool consumer = lane < Traits::kConsumers;
  const int begin = consumer ? first_row + lane * kFragmentRows : first_row;
  BasicTileBounds<int> bounds = band_bounds(params.band, begin, begin + (consumer ? kFragmentRows : Traits::kBlockM),
                                            origin.sequence.q_len, origin.sequence.k_len);
  if (TANDEM_UNLIKELY(is_narrowed<Traits>(params))) {
    TANDEM_NO_UNROLL
    for (int w = 0; w < Traits::kConsumers; ++w) {
      const BasicTileBounds<int> narrowed =
          narrowed_bounds<Traits>(params, origin, first_row + w * kFragmentRows, lane);
      if (lane == w) bounds = narrowed;
    }
  }
  return bounds;
}

// Keys that no row of the tile sees. The lanes bring what they have found for their rows; the lanes after the consumers
// get the answer.
template <typename Traits>
TANDEM_DEVICE TileSeen seen_blocks(const ForwardParams& params, const BasicTileBounds<int>& bounds,
                                   const BasicBlockRange<int>& range, int lane) {
  TileSeen seen{};
  if (TANDEM_UNLIKELY(is_narrowed<Traits>(params))) {  // there may be holes in any block that is not full
    seen.clean_begin = lanes_max<kBlockLanes>(lane < Traits::kConsumers ? range.full_begin : 0);
    seen.clean_end = lanes_min<kBlockLanes>(lane < Traits::kConsumers ? range.full_end : INT32_MAX);
    return seen;
  }
  seen.seen_begin = bounds.min_lo;
  seen.seen_end = bounds.max_hi;
  // Keys past the end of a dense problem's buffer come as zeros; what V^T's last slots hold is the caller's.
  const bool zero_filled = params.sequences == nullptr && seen.seen_end == params.seqlen_k &&
                           (!Traits::kFp8 || Traits::kTransposes || params.seqlen_k % kSlotGroup == 0);
  seen.clean_begin = ceil_div(seen.seen_begin, Traits::kBlockN);
  seen.clean_end = zero_filled ? INT32_MAX : seen.seen_end / Traits::kBlockN;
  return seen;
}

// Which of the blocks that a consumer visits it takes without a mask.
template <typename Traits>
TANDEM_DEVICE ConsumerBlocks consumer_blocks(const ForwardParams& params, const BasicTileBounds<int>& bounds,
                                             const BasicBlockRange<int>& range) {
  ConsumerBlocks blocks{range.begin, range.end, range.full_begin, range.full_end};
  // A row that sees nothing of the last block has no reference yet in the one before, which is then not for the lazy
  // loop, full as it may be.
  if (Traits::kLazy && bounds.min_hi == (range.end - 1) * Traits::kBlockN) --blocks.full_end;
  if (Traits::kGeneral && params.transform != ScoreTransform::kNone) blocks.full_end = 0;
  if (blocks.full_begin >= blocks.full_end) blocks.full_begin = blocks.full_end = range.end;
  return blocks;
}

// The slot's words about keys: lane w writes consumer w's, the next lane those of the tile.
template <typename Traits>
TANDEM_DEVICE void send_blocks(const ForwardParams& params, const TileOrigin& origin, TileSlot<Traits> slot, int lane) {
  static_assert(Traits::kConsumers < kBlockLanes);
  const BasicTileBounds<int> bounds = lane_bounds<Traits>(params, origin, lane);
  const BasicBlockRange<int> range = block_range(bounds, Traits::kBlockN);
  const bool visits = lane < Traits::kConsumers && !range.empty();
  const int end = lanes_max<kBlockLanes>(visits ? range.end : 0);
  const int begin = min_of(lanes_min<kBlockLanes>(visits ? range.begin : INT32_MAX), end);
  const TileSeen seen = seen_blocks<Traits>(params, bounds, range, lane);
  if (lane < Traits::kConsumers) {
    slot.set(lane,
             visits ? consumer_blocks<Traits>(params, bounds, range) : ConsumerBlocks{begin, begin, begin, begin});
  } else if (lane == Traits::kConsumers) {
    slot.set(TileKeys{begin, end, origin.sequence.k_len,
                      static_cast<int>(params.qheads_per_khead.quotient(static_cast<uint32_t>(origin.head)))});
    slot.set(seen);
  }
}

template <typename Traits>
TANDEM_DEVICE void send_place(const TileOrigin& origin, TileSlot<Traits> slot, int lane) {
  if (lane != 0) return;
  const PackedSequence& sequence = origin.sequence;
  slot.set(TilePlace{1, origin.m_block * Traits::kBlockM, origin.head, origin.batch});
  slot.set(TileRows{sequence.q_begin, sequence.q_len, sequence.q_rows, sequence.k_begin});
}

template <typename Traits>
TANDEM_DEVICE void send_scales(const ForwardParams& params, const TileOrigin& origin, TileSlot<Traits> slot, int lane) {
  const int number = origin.sequence.number;
  if (lane < Traits::kConsumers) {
    const int row = origin.m_block * Traits::kBlockM + lane * kFragmentRows;
    const bool used = row < origin.sequence.q_len;
    slot.set_q_scale(lane, used ? block_scale(params.q_scale, number, origin.head, row) : 1.0f);
  } else if (lane == Traits::kConsumers) {
    slot.set_sequence(number);
  }
}

// Each consumer's Q, when the O that went before has left its place.
template <typename Traits>
TANDEM_DEVICE void load_q(const ForwardParams& params, const TileOrigin& origin,
                          PipelineState<Traits::kQPlaces>& q_pipe) {
  using Tile = typename Traits::QTile;
  const int row = origin.sequence.q_begin + origin.m_block * Traits::kBlockM;
  TANDEM_NO_UNROLL
  for (int w = 0; w < Traits::kConsumers; ++w) {
    acquire(Traits::kQEmpty, q_pipe);
    if (ptx::lane_index() == 0) {
      load_tile<Tile, Traits::kElementBytes>(
          Traits::kSmemQ + static_cast<uint32_t>(q_pipe.index) * Traits::kQPlaceBytes, &params.q,
          barrier_at(Traits::kQFull, q_pipe.index), row + w * kFragmentRows, origin.head, origin.batch);
    }
    q_pipe.advance();
  }
}

template <typename Traits>
TANDEM_DEVICE void publish(PipelineState<Traits::kTileStages> pipe) {
  ptx::warp_sync();
  ptx::mbarrier_arrive_if(barrier_at(Traits::kTileFull, pipe.index), ptx::lane_index() == 0);
}

// A work tile to everybody. Q comes last: its place falls free only when O of the tile that was there before has left
// it, and K and V need not wait for that.
template <typename Traits>
TANDEM_DEVICE void send_tile(const ForwardParams& params, int index, PipelineState<Traits::kTileStages> pipe,
                             PipelineState<Traits::kQPlaces>& q_pipe) {
  const int lane = ptx::thread_rank_anew() % ptx::kWarpThreads;  // nothing about it is kept from tile to tile
  const TileSlot<Traits> slot(pipe.index);
  const TileOrigin origin = params.sequences == nullptr ? dense_origin(params, index) : packed_origin(params, index);
  send_place<Traits>(origin, slot, lane);
  send_blocks<Traits>(params, origin, slot, lane);
  if constexpr (Traits::kFp8) send_scales<Traits>(params, origin, slot, lane);
  publish<Traits>(pipe);
  load_q<Traits>(params, origin, q_pipe);
}

// The next work tile's number. Whoever prepared the counter has ended by then.
TANDEM_DEVICE int draw_tile(const ForwardParams& params) {
  ptx::wait_for_previous_grid();
  uint32_t drawn = 0;
  if (ptx::lane_index() == 0) drawn = ptx::atomic_add(&params.workspace->next_tile, 1);
  return static_cast<int>(ptx::shuffle_index(drawn, 0)) + ptx::grid_size();
}

// The host has seen to it that they can be counted in an int.
TANDEM_DEVICE int count_tiles(const ForwardParams& params) {
  if (params.sequences == nullptr) return params.dense_work.tiles;
  ptx::wait_for_previous_grid();
  return ptx::load_global(&params.workspace->m_blocks) * params.nheads_q;
}

// A whole warp. A block's first tile is its own number; it draws the next when a slot falls free, that is when all are
// done with the tile two before the one just sent: late enough for the counter to balance the blocks, early enough for
// the loads to run ahead.
template <typename Traits>
TANDEM_DEVICE void schedule_tiles(const ForwardParams& params) {
  PipelineState<Traits::kTileStages> pipe;
  PipelineState<Traits::kQPlaces> q_pipe;
  const int tiles = count_tiles(params);
  int index = ptx::block_index();
  while (index < tiles) {
    send_tile<Traits>(params, index, pipe, q_pipe);
    pipe.advance();
    acquire(Traits::kTileEmpty, pipe);
    index = draw_tile(params);
  }
  if (ptx::lane_index() == 0) TileSlot<Traits>(pipe.index).set(TilePlace{});
  publish<Traits>(pipe);
}

}  // namespace tandem::sm90
