#pragma once

#include <cstdint>

#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/pipeline.cuh"

// The producer warpgroup, one thread of each warp: one draws work tiles, one loads Q, K, V, one for each consumer sends
// its O home.
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

// A stage of K or of V.
template <typename Tile, int kStages>
TANDEM_DEVICE void load_stage(uint32_t smem, const ptx::TensorMap* map, uint32_t full, uint32_t empty,
                              PipelineState<kStages> pipe, int row, int head, int batch) {
  acquire(empty, pipe);
  load_tile<Tile>(smem + static_cast<uint32_t>(pipe.index) * Tile::kBytes, map, barrier_at(full, pipe.index), row, head,
                  batch);
}

// Both consumers' Q, each when the O of the tile before has left its place.
template <typename Traits>
TANDEM_DEVICE void load_q(const ForwardParams& params, const ForwardTile& tile, uint32_t phase) {
  TANDEM_UNROLL
  for (int w = 0; w < Traits::kConsumers; ++w) {
    const int row = tile.m_block * Traits::kBlockM + w * Traits::QTile::kRows;
    ptx::mbarrier_wait(barrier_at(Traits::kQEmpty, w), phase ^ 1);
    load_tile<typename Traits::QTile>(Traits::kSmemQ + w * Traits::QTile::kBytes, &params.q,
                                      barrier_at(Traits::kQFull, w), row, tile.head, tile.batch);
  }
}

// One thread. Key blocks run from the last to the first: the masked ones of a causal tile come first. The first K goes
// ahead of Q, whose place the last tile's O may still hold.
template <typename Traits>
TANDEM_DEVICE void load_tiles(const ForwardParams& params) {
  PipelineState<Traits::kStages> pipe;  // of K and of V, which advance together
  PipelineState<Traits::kTileStages> tile_pipe;
  uint32_t q_phase = 0;
  for (;;) {
    const ForwardTile tile = receive_tile<Traits>(tile_pipe);
    ptx::mbarrier_arrive(barrier_at(Traits::kTileEmpty, tile_pipe.index));
    if (!tile.valid) return;
    const int khead = tile.head / static_cast<int>(params.qheads_per_khead);
    if (tile.begin == tile.end) load_q<Traits>(params, tile, q_phase);
    TANDEM_NO_UNROLL
    for (int n_block = tile.end - 1; n_block >= tile.begin; --n_block) {
      const int key = n_block * Traits::kBlockN;
      load_stage<typename Traits::KTile>(Traits::kSmemK, &params.k, Traits::kKFull, Traits::kKEmpty, pipe, key, khead,
                                         tile.batch);
      if (n_block == tile.end - 1) load_q<Traits>(params, tile, q_phase);
      load_stage<typename Traits::VTile>(Traits::kSmemV, &params.v, Traits::kVFull, Traits::kVEmpty, pipe, key, khead,
                                         tile.batch);
      pipe.advance();
    }
    q_phase ^= 1;
    tile_pipe.advance();
  }
}

// One thread for consumer w. The copy engine clips rows past seqlen_q.
template <typename Traits>
TANDEM_DEVICE void store_tiles(const ForwardParams& params, int w) {
  using Tile = typename Traits::QTile;
  PipelineState<Traits::kTileStages> tile_pipe;
  uint32_t phase = 0;
  const uint32_t smem = Traits::kSmemQ + static_cast<uint32_t>(w) * Tile::kBytes;
  for (;;) {
    const ForwardTile tile = receive_tile<Traits>(tile_pipe);
    ptx::mbarrier_arrive(barrier_at(Traits::kTileEmpty, tile_pipe.index));
    if (!tile.valid) break;
    const int row = tile.m_block * Traits::kBlockM + w * Tile::kRows;
    ptx::mbarrier_wait(barrier_at(Traits::kOFull, w), phase);
    TANDEM_UNROLL
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      ptx::tma_store_4d(&params.out, smem + panel * Tile::kPanelBytes, panel * Tile::kPanelRowBytes / 2, row, tile.head,
                        tile.batch);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(barrier_at(Traits::kQEmpty, w));
    phase ^= 1;
    tile_pipe.advance();
  }
  ptx::bulk_wait<0>();  // shared memory must outlive the stores, and the grid's end publish them
}

template <typename Traits>
TANDEM_DEVICE void produce(const ForwardParams& params) {
  static_assert(Traits::kConsumers == 2, "a warpgroup has four warps");
  const int warp = ptx::warp_index();
  if (!ptx::elect_one()) return;
  if (warp == 0) {
    load_tiles<Traits>(params);
  } else if (warp == 1) {
    schedule_tiles<Traits>(params);
  } else {
    store_tiles<Traits>(params, warp - 2);
  }
}

}  // namespace tandem::sm90
