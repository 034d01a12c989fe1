#pragma once

#include <cstdint>

#include "sm90/forward/clean.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/tile/load_tile.cuh"
#include "sm90/tile/pipeline.cuh"

// The load thread: K and V of every tile, as stages fall free.
namespace tandem::sm90 {

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

// One thread. Key blocks run from the last to the first: the masked ones of a causal tile come first.
template <typename Traits>
TANDEM_DEVICE void load_tiles(const ForwardParams& params) {
  TileReader<Traits> reader;
  PipelineState<Traits::kKStages> k_pipe;
  PipelineState<Traits::kVStages> v_pipe;
  while (reader.next()) {
    const TileSlot<Traits> slot = reader.slot();
    const TileKeys keys = slot.keys();
    const TileSeen seen = slot.seen();
    const int k_begin = slot.rows().k_begin;
    const int batch = slot.place().batch;
    TANDEM_NO_UNROLL
    for (int n_block = keys.end - 1; n_block >= keys.begin; --n_block) {
      const int key = k_begin + n_block * Traits::kBlockN;
      load_k<Traits>(params, k_pipe, key, keys.key_head, batch);
      load_v<Traits>(params, v_pipe, key, keys.key_head, batch, needs_cleaning(seen, n_block));
      k_pipe.advance();
      v_pipe.advance();
    }
    reader.release_by_thread();
  }
}

}  // namespace tandem::sm90
