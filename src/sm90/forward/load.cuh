#pragma once

#include <cstdint>
#include <type_traits>

#include "core/fp8.h"
#include "core/int_math.h"
#include "sm90/forward/clean.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/scales.cuh"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/load_tile.cuh"
#include "sm90/tile/pipeline.cuh"

// The load thread: K and V of every tile, as stages fall free.
namespace tandem::sm90 {

// The scales of a block of keys, to its stage of K. Those of a block are read while the one before is loaded.
template <typename Traits>
class ScaleLoader {
 public:
  TANDEM_DEVICE ScaleLoader(const ForwardParams& params, TileSlot<Traits> slot, int key_head)
      : params_(params), sequence_(slot.sequence()), key_head_(key_head) {}

  TANDEM_DEVICE void read(int n_block) {
    const int key = max_of(n_block, 0) * Traits::kBlockN;
    k_ = block_scale(params_.k_scale, sequence_, key_head_, key);
    v_ = block_scale(params_.v_scale, sequence_, key_head_, key);
  }
  // HAZARD: when the stage is free, before the load whose barrier says that the scales are there too.
  TANDEM_DEVICE void store(int stage) const {
    ptx::store_shared(scale_at(Traits::kScalesK, stage), k_);
    ptx::store_shared(scale_at(Traits::kScalesV, stage), v_);
  }

 private:
  const ForwardParams& params_;
  const int sequence_, key_head_;
  float k_ = 1.0f;
  float v_ = 1.0f;
};

// 16-bit types have none.
template <typename Traits>
struct NoScales {
  TANDEM_DEVICE NoScales(const ForwardParams&, TileSlot<Traits>, int) {}
  TANDEM_DEVICE void read(int) {}
  TANDEM_DEVICE void store(int) const {}
};
template <typename Traits>
using Scales = std::conditional_t<Traits::kFp8, ScaleLoader<Traits>, NoScales<Traits>>;

template <typename Traits>
TANDEM_DEVICE void load_k(const ForwardParams& params, PipelineState<Traits::kKStages> pipe,
                          const Scales<Traits>& scales, int key, int head, int batch) {
  using Tile = typename Traits::KTile;
  acquire(Traits::kKEmpty, pipe);
  scales.store(pipe.index);
  load_tile<Tile, Traits::kElementBytes>(Traits::kSmemK + static_cast<uint32_t>(pipe.index) * Tile::kBytes, &params.k,
                                         barrier_at(Traits::kKFull, pipe.index), key, head, batch);
}

// To the transposing warp.
template <typename Traits>
TANDEM_DEVICE void load_stored_v(const ForwardParams& params, PipelineState<Traits::kLandingStages> pipe, int key,
                                 int head, int batch) {
  using Tile = typename Traits::StoredVTile;
  acquire(Traits::kVTaken, pipe);
  load_tile<Tile, 1>(Traits::kSmemStoredV + static_cast<uint32_t>(pipe.index) * Tile::kBytes, &params.v,
                     barrier_at(Traits::kVLanded, pipe.index), key, head, batch);
}

// To the consumers, or by way of the clean-up warp. `key`: of V^T its slot.
template <typename Traits>
TANDEM_DEVICE void load_v(const ForwardParams& params, PipelineState<Traits::kVStages> pipe, int key, int head,
                          int batch, bool clean_up) {
  using Tile = typename Traits::VTile;
  acquire(Traits::kVEmpty, pipe);
  const uint32_t smem = Traits::kSmemV + static_cast<uint32_t>(pipe.index) * Traits::kVStageBytes;
  const uint32_t full = barrier_at(clean_up ? Traits::kVLanded : Traits::kVFull, pipe.index);
  if constexpr (Traits::kFp8) {
    ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes);
    ptx::tma_load_4d(smem, &params.v, full, key, 0, head, batch);
  } else {
    load_tile<Tile>(smem, &params.v, full, key, head, batch);
  }
}

// Where the sequence's V begins: a row, or of V^T a slot.
template <typename Traits>
TANDEM_DEVICE int v_begin(const ForwardParams& params, TileSlot<Traits> slot, int k_begin) {
  if constexpr (Traits::kFp8 && !Traits::kTransposes) {
    return params.sequences == nullptr ? 0 : packed_slot_begin(k_begin, slot.sequence());
  }
  return k_begin;
}

// One thread. Key blocks run from the last to the first: the masked ones of a causal tile come first.
template <typename Traits>
TANDEM_DEVICE void load_tiles(const ForwardParams& params) {
  TileReader<Traits> reader;
  constexpr bool kInStep = Traits::kKStages == Traits::kLandingStages;  // then one state serves both
  PipelineState<Traits::kKStages> k_pipe;
  PipelineState<Traits::kLandingStages> v_pipe;
  while (reader.next()) {
    const TileSlot<Traits> slot = reader.slot();
    const TileKeys keys = slot.keys();
    const TileSeen seen = slot.seen();
    const int k_begin = slot.rows().k_begin;
    const int v_first = v_begin(params, slot, k_begin);
    const int batch = slot.place().batch;
    Scales<Traits> scales(params, slot, keys.key_head);
    if (keys.begin < keys.end) scales.read(keys.end - 1);
    TANDEM_NO_UNROLL
    for (int n_block = keys.end - 1; n_block >= keys.begin; --n_block) {
      const int key = n_block * Traits::kBlockN;
      load_k<Traits>(params, k_pipe, scales, k_begin + key, keys.key_head, batch);
      if constexpr (Traits::kTransposes) {
        load_stored_v<Traits>(params, v_pipe, v_first + key, keys.key_head, batch);
      } else {
        load_v<Traits>(params, v_pipe, v_first + key, keys.key_head, batch, needs_cleaning(seen, n_block));
      }
      scales.read(n_block - 1);
      k_pipe.advance();
      if constexpr (kInStep) {
        v_pipe = {k_pipe.index, k_pipe.phase};
      } else {
        v_pipe.advance();
      }
    }
    reader.release_by_thread();
  }
}

}  // namespace tandem::sm90
