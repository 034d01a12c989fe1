#pragma once

#include <cstdint>

#include "sm90/forward/clean.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/pipeline.cuh"

// The transposing warp, in place of the clean-up warp: V of e4m3, as stored, to V^T in slots, and with it what that
// does. wgmma takes fp8 operands along K only, which for P V is the keys.
namespace tandem::sm90 {

// A unit is 32 keys x 16 columns. A matrix of ldmatrix is 8 keys x 8 pairs of columns; transposed, a thread has two
// keys of one pair of columns from each of the four.
template <typename Traits>
TANDEM_DEVICE void load_unit(uint32_t (&keys)[4], uint32_t stored, int lane, int first_key, int first_column) {
  const int key = first_key + lane;
  ptx::ldmatrix_x4_transposed(keys, stored + Traits::StoredVTile::chunk_offset(key, first_column));
}

// Two matrices are the four adjacent slots of a group (core/fp8.h) for each column of the pair: bytes 0 and 2 are the
// even column's, 1 and 3 the odd one's.
template <typename Traits>
TANDEM_DEVICE void store_unit(const uint32_t (&keys)[4], uint32_t transposed, int lane, int first_key,
                              int first_column) {
  constexpr uint32_t kEven = 0x6420;
  constexpr uint32_t kOdd = 0x7531;
  const uint32_t slots[4] = {ptx::permute_bytes(keys[0], keys[1], kEven), ptx::permute_bytes(keys[0], keys[1], kOdd),
                             ptx::permute_bytes(keys[2], keys[3], kEven), ptx::permute_bytes(keys[2], keys[3], kOdd)};
  const int column = first_column + lane % 8 * 2 + lane / 8 % 2;
  const int first_slot = first_key + lane / 16 * 16;
  ptx::stmatrix_x4(transposed + Traits::VTile::chunk_offset(column, first_slot), slots);
}

// Four units at a time: a unit's way from load to store takes far longer than either.
template <typename Traits>
TANDEM_DEVICE void transpose_block(int landed, int stage) {
  using Stored = typename Traits::StoredVTile;
  constexpr int kUnits = 4;
  constexpr int kUnitsOfColumns = Traits::kBlockN / 32;
  constexpr int kColumns = 16 * kUnits / kUnitsOfColumns;
  const int lane = ptx::thread_rank_anew() % ptx::kWarpThreads;  // so that it takes no register between blocks
  const uint32_t stored = Traits::kSmemStoredV + static_cast<uint32_t>(landed) * Stored::kBytes;
  const uint32_t transposed = Traits::kSmemV + static_cast<uint32_t>(stage) * Traits::kVStageBytes;
  TANDEM_NO_UNROLL
  for (int column = 0; column < Traits::kHeadDimV; column += kColumns) {
    uint32_t keys[kUnits][4];
    TANDEM_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      load_unit<Traits>(keys[u], stored, lane, u % kUnitsOfColumns * 32, column + u / kUnitsOfColumns * 16);
    }
    TANDEM_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      store_unit<Traits>(keys[u], transposed, lane, u % kUnitsOfColumns * 32, column + u / kUnitsOfColumns * 16);
    }
  }
}

// A whole warp. It walks the stages that V lands in as the load thread does, and those of V^T as the consumers do.
template <typename Traits>
TANDEM_DEVICE void transpose_tiles(const ForwardParams& params) {
  TileReader<Traits> reader;
  PipelineState<Traits::kLandingStages> landing;
  PipelineState<Traits::kVStages> pipe;
  while (reader.next()) {
    const TileKeys keys = reader.slot().keys();
    const TileSeen seen = reader.slot().seen();
    TANDEM_NO_UNROLL
    for (int n_block = keys.end - 1; n_block >= keys.begin; --n_block) {
      wait(Traits::kVLanded, landing);
      acquire(Traits::kVEmpty, pipe);
      transpose_block<Traits>(landing.index, pipe.index);
      release(Traits::kVTaken, landing);  // HAZARD: the lanes meet here, before any clears what another has written
      if (needs_cleaning(seen, n_block)) clean_block<Traits>(params, reader.slot(), n_block, pipe.index);
      ptx::fence_proxy_async_shared();
      release(Traits::kVFull, pipe);
      landing.advance();
      pipe.advance();
    }
    reader.release_by_warp();
  }
}

}  // namespace tandem::sm90
