#pragma once

#include <cstdint>

#include "core/block_range.h"
#include "core/int_math.h"
#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/forward/params.h"
#include "sm90/forward/row_keys.cuh"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/load_tile.cuh"
#include "sm90/tile/pipeline.cuh"

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

TANDEM_DEVICE int warp_min(int value) {
  TANDEM_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = min_of(value, static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(value), lanes)));
  }
  return value;
}
TANDEM_DEVICE int warp_max(int value) {
  return -warp_min(-value);
}

// Over the first four lanes, for them.
TANDEM_DEVICE int first_lanes_min(int value) {
  value = min_of(value, static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(value), 1)));
  return min_of(value, static_cast<int>(ptx::shuffle_xor(static_cast<uint32_t>(value), 2)));
}
TANDEM_DEVICE int first_lanes_max(int value) {
  return -first_lanes_min(-value);
}

// What rows [first_row, first_row + kRows) see where interval arrays narrow the mask: each lane looks at every 32nd.
template <typename Traits, int kRows>
TANDEM_DEVICE BasicTileBounds<int> interval_bounds(const ForwardParams& params, const TileOrigin& origin, int first_row,
                                                   int lane) {
  const PackedSequence& sequence = origin.sequence;
  BasicTileBounds<int> own;
  for (int i = lane; i < kRows; i += ptx::kWarpThreads) {
    const int row = first_row + i;
    if (row < sequence.q_len) {
      include(own, row_keys<Traits>(params, sequence.q_begin, row, sequence.q_len, sequence.k_len, origin.head,
                                    origin.batch));
    }
  }
  BasicTileBounds<int> bounds;
  bounds.any_visible = ptx::any_sync(own.any_visible);
  bounds.has_empty = ptx::any_sync(own.has_empty);
  bounds.min_lo = warp_min(own.any_visible ? own.min_lo : INT32_MAX);
  bounds.max_lo = warp_max(own.any_visible ? own.max_lo : 0);
  bounds.min_hi = warp_min(own.any_visible ? own.min_hi : INT32_MAX);
  bounds.max_hi = warp_max(own.any_visible ? own.max_hi : 0);
  return bounds;
}

// Lane w < kConsumers: the bounds of consumer w's rows; the other lanes: of all rows of the tile.
template <typename Traits>
TANDEM_DEVICE BasicTileBounds<int> lane_bounds(const ForwardParams& params, const TileOrigin& origin, int lane) {
  const int first_row = origin.m_block * Traits::kBlockM;
  const int q_len = origin.sequence.q_len;
  const bool consumer = lane < Traits::kConsumers;
  const int begin = consumer ? first_row + lane * 64 : first_row;
  BasicTileBounds<int> bounds =
      tile_bounds(params.mask, begin, begin + (consumer ? 64 : Traits::kBlockM), q_len, origin.sequence.k_len);
  if (TANDEM_UNLIKELY(has_intervals<Traits>(params))) {
    TANDEM_NO_UNROLL
    for (int w = 0; w < Traits::kConsumers; ++w) {
      const BasicTileBounds<int> narrowed = interval_bounds<Traits, 64>(params, origin, first_row + w * 64, lane);
      if (lane == w) bounds = narrowed;
    }
  }
  return bounds;
}

// The slot's words about keys. Each lane brings its bounds.
template <typename Traits>
TANDEM_DEVICE void send_blocks(const ForwardParams& params, const TileOrigin& origin, TileSlot<Traits> slot, int lane) {
  static_assert(Traits::kConsumers < 4);
  const BasicTileBounds<int> bounds = lane_bounds<Traits>(params, origin, lane);
  BasicBlockRange<int> range = block_range(bounds, Traits::kBlockN);
  const bool visits = lane < Traits::kConsumers && !range.empty();
  const int begin = first_lanes_min(visits ? range.begin : INT32_MAX);
  const int end = first_lanes_max(visits ? range.end : 0);
  int all_full_begin = 0;  // with interval arrays there may be holes in any block that is not full
  int all_full_end = 0;
  if (TANDEM_UNLIKELY(has_intervals<Traits>(params))) {
    all_full_begin = first_lanes_max(lane < Traits::kConsumers ? range.full_begin : 0);
    all_full_end = first_lanes_min(lane < Traits::kConsumers ? range.full_end : INT32_MAX);
  }

  // Transformed scores take the loop that masks.
  if (Traits::kGeneral && params.transform != ScoreTransform::kNone) range.full_begin = range.full_end = range.end;
  if (visits) {
    slot.set(lane, ConsumerBlocks{range.begin, range.end, range.full_begin, range.full_end});
  } else if (lane < Traits::kConsumers) {
    const int none = end == 0 ? 0 : begin;
    slot.set(lane, ConsumerBlocks{none, none, none, none});
  }
  if (lane != Traits::kConsumers) return;
  const bool any = end > 0;
  const int k_len = origin.sequence.k_len;
  slot.set(TileKeys{any ? begin : 0, any ? end : 0, k_len,
                    static_cast<int>(params.qheads_per_khead.quotient(static_cast<uint32_t>(origin.head)))});
  TileSeen seen{};
  seen.seen_begin = bounds.min_lo;
  seen.seen_end = bounds.max_hi;
  // Keys past the end of a dense problem's buffer come as zeros.
  const bool zero_filled = params.sequences == nullptr && seen.seen_end == params.seqlen_k;
  seen.clean_begin = ceil_div(seen.seen_begin, Traits::kBlockN);
  seen.clean_end = zero_filled ? INT32_MAX : seen.seen_end / Traits::kBlockN;
  if (TANDEM_UNLIKELY(has_intervals<Traits>(params))) {
    seen.clean_begin = all_full_begin;
    seen.clean_end = all_full_end;
  }
  slot.set(seen);
}

template <typename Traits>
TANDEM_DEVICE void send_place(const TileOrigin& origin, TileSlot<Traits> slot, int lane) {
  if (lane != 0) return;
  const PackedSequence& sequence = origin.sequence;
  slot.set(TilePlace{1, origin.m_block * Traits::kBlockM, origin.head, origin.batch});
  slot.set(TileRows{sequence.q_begin, sequence.q_len, sequence.q_rows, sequence.k_begin});
}

// Each consumer's Q, when the O that went before has left its place.
template <typename Traits>
TANDEM_DEVICE void load_q(const ForwardParams& params, const TileOrigin& origin,
                          PipelineState<Traits::kQStages> q_pipe) {
  using Tile = typename Traits::QTile;
  const int row = origin.sequence.q_begin + origin.m_block * Traits::kBlockM;
  TANDEM_NO_UNROLL
  for (int w = 0; w < Traits::kConsumers; ++w) {
    const int q = q_pipe.index * Traits::kConsumers + w;
    ptx::mbarrier_wait(barrier_at(Traits::kQEmpty, q), q_pipe.phase ^ 1);
    if (ptx::lane_index() == 0) {
      load_tile<Tile>(Traits::kSmemQ + static_cast<uint32_t>(q) * Tile::kBytes, &params.q,
                      barrier_at(Traits::kQFull, q), row + w * 64, origin.head, origin.batch);
    }
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
                             PipelineState<Traits::kQStages> q_pipe) {
  const int lane = ptx::thread_rank_anew() % ptx::kWarpThreads;  // nothing about it is kept from tile to tile
  const TileSlot<Traits> slot(pipe.index);
  const TileOrigin origin = params.sequences == nullptr ? dense_origin(params, index) : packed_origin(params, index);
  send_place<Traits>(origin, slot, lane);
  send_blocks<Traits>(params, origin, slot, lane);
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
  PipelineState<Traits::kQStages> q_pipe;
  const int tiles = count_tiles(params);
  int index = ptx::block_index();
  while (index < tiles) {
    send_tile<Traits>(params, index, pipe, q_pipe);
    pipe.advance();
    q_pipe.advance();
    acquire(Traits::kTileEmpty, pipe);
    index = draw_tile(params);
  }
  if (ptx::lane_index() == 0) TileSlot<Traits>(pipe.index).set(TilePlace{});
  publish<Traits>(pipe);
}

}  // namespace tandem::sm90
