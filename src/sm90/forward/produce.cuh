#pragma once

#include <cstdint>

#include "sm90/forward/clean.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/schedule.cuh"
#include "sm90/forward/store.cuh"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/pipeline.cuh"

// The producer warpgroup: one warp loads Q, K, V (by one thread), one draws work tiles, one clears what no row sees,
// one sends O home.
namespace tandem::sm90 {

// Rows [row, row + Tile::kRows) of one head, panel by panel; completes on `full`.
template <typename Tile>
TANDEM_DEVICE void load_tile(uint32_t smem, const ptx::TensorMap* map, uint32_t full, int row, int head, int batch) {
  ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes);
  TANDEM_UNROLL
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    ptx::tma_load_4d(smem + panel * Tile::kPanelBytes, map, full, panel * Tile::kPanelRowBytes / 2, row, head, batch);
  }
}

// Each consumer's Q, when the O of the tile before has left its place. A tile that visits no key needs the place only.
template <typename Traits>
TANDEM_DEVICE void load_q(const ForwardParams& params, TileSlot<Traits> slot, uint32_t phase, bool wanted) {
  const TilePlace place = slot.place();
  const int first_row = slot.rows().q_begin + place.first_row;
  TANDEM_UNROLL
  for (int w = 0; w < Traits::kConsumers; ++w) {
    ptx::mbarrier_wait(barrier_at(Traits::kQEmpty, w), phase ^ 1);
    if (wanted) {
      load_tile<typename Traits::QTile>(Traits::kSmemQ + w * Traits::QTile::kBytes, &params.q,
                                        barrier_at(Traits::kQFull, w), first_row + w * 64, place.head, place.batch);
    } else {
      ptx::mbarrier_arrive(barrier_at(Traits::kQFull, w));
    }
  }
}

template <typename Traits>
TANDEM_DEVICE void load_k(const ForwardParams& params, PipelineState<Traits::kKStages> pipe, int key, int head,
                          int batch) {
  using Tile = typename Traits::KTile;
  acquire(Traits::kKEmpty, pipe);
  load_tile<Tile>(Traits::kSmemK + static_cast<uint32_t>(pipe.index) * Tile::kBytes, &params.k,
                  barrier_at(Traits::kKFull, pipe.index), key, head, batch);
}

// To the consumers, or by way of the clean-up warp.
template <typename Traits>
TANDEM_DEVICE void load_v(const ForwardParams& params, PipelineState<Traits::kVStages> pipe, int key, int head,
                          int batch, bool clean_up) {
  using Tile = typename Traits::VTile;
  acquire(Traits::kVEmpty, pipe);
  load_tile<Tile>(Traits::kSmemV + static_cast<uint32_t>(pipe.index) * Tile::kBytes, &params.v,
                  barrier_at(clean_up ? Traits::kVLanded : Traits::kVFull, pipe.index), key, head, batch);
}

// One thread. Key blocks run from the last to the first: the masked ones of a causal tile come first. The first K goes
// ahead of Q, whose place the last tile's O may still hold.
template <typename Traits>
TANDEM_DEVICE void load_tiles(const ForwardParams& params) {
  TileReader<Traits> reader;
  PipelineState<Traits::kKStages> k_pipe;
  PipelineState<Traits::kVStages> v_pipe;
  uint32_t q_phase = 0;
  while (reader.next()) {
    const TileSlot<Traits> slot = reader.slot();
    const TileKeys keys = slot.keys();
    const TileSeen seen = slot.seen();
    const int k_begin = slot.rows().k_begin;
    const int batch = slot.place().batch;
    if (keys.begin == keys.end) load_q<Traits>(params, slot, q_phase, false);
    TANDEM_NO_UNROLL
    for (int n_block = keys.end - 1; n_block >= keys.begin; --n_block) {
      const int key = k_begin + n_block * Traits::kBlockN;
      load_k<Traits>(params, k_pipe, key, keys.key_head, batch);
      if (n_block == keys.end - 1) load_q<Traits>(params, slot, q_phase, true);
      load_v<Traits>(params, v_pipe, key, keys.key_head, batch, needs_cleaning(seen, n_block));
      k_pipe.advance();
      v_pipe.advance();
    }
    q_phase ^= 1;
    reader.release_by_thread();
  }
}

template <typename Traits>
TANDEM_DEVICE void produce(const ForwardParams& params) {
  const int warp = ptx::warp_index();
  if (warp == 0) {
    if (ptx::elect_one()) load_tiles<Traits>(params);
  } else if (warp == 1) {
    schedule_tiles<Traits>(params);
  } else if (warp == 2) {
    clean_tiles<Traits>(params);
  } else {
    store_tiles<Traits>(params);
  }
}

}  // namespace tandem::sm90
