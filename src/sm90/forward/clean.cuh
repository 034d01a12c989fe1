#pragma once

#include <cstdint>

#include "core/fp8.h"
#include "core/int_math.h"
#include "core/mask.h"
#include "sm90/forward/params.h"
#include "sm90/forward/row_keys.cuh"
#include "sm90/forward/traits.h"
#include "sm90/forward/visible_keys.cuh"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/pipeline.cuh"

// The clean-up warp. A block of keys may reach over keys that no row of the tile sees: past the used length, before the
// first window, between row intervals, later ones under a causal mask. Their scores are selected away, so P is 0 there,
// but 0 times a NaN of V is a NaN [7]: their rows of V are cleared in shared memory before a consumer reads them. Most
// blocks need none of this and never meet this warp.
namespace tandem::sm90 {

TANDEM_DEVICE bool needs_cleaning(const TileSeen& seen, int n_block) {
  return n_block < seen.clean_begin || n_block >= seen.clean_end;
}

// Bit i: `first_key` + i lies in [begin, end). For 32 keys.
TANDEM_DEVICE uint32_t bits_between(int first_key, int begin, int end) {
  const int from = min_of(max_of(begin - first_key, 0), 32);
  const int to = min_of(max_of(end - first_key, 0), 32);
  return from < to ? (0xffffffffu >> (32 - (to - from))) << from : 0;
}

// Bit i: some row of the tile sees key `first_key` + i.
template <typename Traits>
TANDEM_DEVICE uint32_t seen_keys(const ForwardParams& params, TileSlot<Traits> slot, int first_key) {
  if (!is_narrowed<Traits>(params)) {
    const TileSeen seen = slot.seen();
    return bits_between(first_key, seen.seen_begin, seen.seen_end);
  }
  const TilePlace place = slot.place();
  const TileRows rows = slot.rows();
  const int k_len = slot.keys().k_len;
  uint32_t bits = 0;
  TANDEM_NO_UNROLL
  for (int i = ptx::lane_index(); i < Traits::kBlockM; i += ptx::kWarpThreads) {
    const BasicRowInterval<int> keys =
        row_keys<Traits>(params, rows.q_begin, place.first_row + i, rows.q_len, k_len, place.head, place.batch);
    bits |= bits_between(first_key, keys.lo, keys.hi);
  }
  TANDEM_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) bits |= ptx::shuffle_xor(bits, lanes);
  return bits;
}

// Writes zeros over rows first_row + i whose bit i of `rows` is set, of 32. A row lies in one row of each panel,
// whatever the swizzle.
template <typename Tile>
TANDEM_DEVICE void clear_rows(uint32_t address, int first_row, uint32_t rows) {
  constexpr int kChunks = Tile::kPanelRowBytes / 16;
  TANDEM_NO_UNROLL
  for (int i = ptx::lane_index(); i < 32 * Tile::kPanels * kChunks; i += ptx::kWarpThreads) {
    const int row = i / kChunks % 32;
    if ((rows >> row & 1) == 0) continue;
    const int panel = i / kChunks / 32;
    const int offset = panel * Tile::kPanelBytes + (first_row + row) * Tile::kPanelRowBytes + i % kChunks * 16;
    ptx::store_shared(address + static_cast<uint32_t>(offset), TilePlace{});
  }
}

// The bytes of a group of 16 slots that hold no seen key, as bits of four words.
struct SlotBytes {
  uint32_t word[4];
};
// Bit i of `keys`: key i of the group is to go.
TANDEM_DEVICE SlotBytes bytes_of_keys(uint32_t keys) {
  SlotBytes bytes{};
  TANDEM_UNROLL
  for (int slot = 0; slot < kSlotGroup; ++slot) {
    if ((keys >> slot_key(slot) & 1) != 0) bytes.word[slot / 4] |= 0xffu << (8 * (slot % 4));
  }
  return bytes;
}

// V^T: writes zeros over the slots of keys first_key + i whose bit i of `keys` is set, of 32. Each group of 16 lies in
// one chunk of every row.
template <typename Tile>
TANDEM_DEVICE void clear_slots(uint32_t address, int first_key, uint32_t keys) {
  TANDEM_NO_UNROLL
  for (int group = 0; group < 2; ++group) {
    const uint32_t keys_of_group = keys >> (16 * group) & 0xffffu;
    if (keys_of_group == 0) continue;
    const SlotBytes gone = bytes_of_keys(keys_of_group);
    TANDEM_NO_UNROLL
    for (int row = ptx::lane_index(); row < Tile::kRows; row += ptx::kWarpThreads) {
      const uint32_t chunk = address + Tile::chunk_offset(row, first_key + 16 * group);
      SlotBytes values = ptx::load_shared<SlotBytes>(chunk);
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) values.word[i] &= ~gone.word[i];
      ptx::store_shared(chunk, values);
    }
  }
}

// Once the block's V has landed in its stage.
template <typename Traits>
TANDEM_DEVICE void clean_block(const ForwardParams& params, TileSlot<Traits> slot, int n_block, int stage) {
  using Tile = typename Traits::VTile;
  static_assert(Traits::kBlockN % 32 == 0);
  const uint32_t address = Traits::kSmemV + static_cast<uint32_t>(stage) * Traits::kVStageBytes;
  TANDEM_NO_UNROLL
  for (int key = 0; key < Traits::kBlockN; key += 32) {
    const uint32_t unseen = ~seen_keys<Traits>(params, slot, n_block * Traits::kBlockN + key);
    if (unseen == 0) continue;
    if constexpr (Traits::kFp8) {
      clear_slots<Tile>(address, key, unseen);
    } else {
      clear_rows<Tile>(address, key, unseen);
    }
  }
}

// A whole warp. It walks the stages of V as the load thread does.
template <typename Traits>
TANDEM_DEVICE void clean_tiles(const ForwardParams& params) {
  TileReader<Traits> reader;
  PipelineState<Traits::kVStages> pipe;
  uint32_t landed_phases = 0;  // bit s: parity of v_landed[s]'s next phase
  while (reader.next()) {
    const TileKeys keys = reader.slot().keys();
    const TileSeen seen = reader.slot().seen();
    TANDEM_NO_UNROLL
    for (int n_block = keys.end - 1; n_block >= keys.begin; --n_block) {
      if (needs_cleaning(seen, n_block)) {
        ptx::mbarrier_wait(barrier_at(Traits::kVLanded, pipe.index), landed_phases >> pipe.index & 1);
        landed_phases ^= 1u << pipe.index;
        clean_block<Traits>(params, reader.slot(), n_block, pipe.index);
        ptx::fence_proxy_async_shared();
        ptx::warp_sync();
        ptx::mbarrier_arrive_if(barrier_at(Traits::kVFull, pipe.index), ptx::lane_index() == 0);
      }
      pipe.advance();
    }
    reader.release_by_warp();
  }
}

}  // namespace tandem::sm90
