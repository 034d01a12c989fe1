#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/shared.cuh"

// Rows of a tile in shared memory that nobody may see: their scores are selected away, but 0 times a NaN is a NaN.
namespace tandem::sm90 {

// Bit i: `first` + i lies in [begin, end). For 32 rows.
TANDEM_DEVICE uint32_t bits_between(int first, int begin, int end) {
  const int from = min_of(max_of(begin - first, 0), 32);
  const int to = min_of(max_of(end - first, 0), 32);
  return from < to ? (0xffffffffu >> (32 - (to - from))) << from : 0;
}

// Writes zeros over rows first_row + i whose bit i of `rows` is set, of 32. A row lies in one row of each panel,
// whatever the swizzle. A whole warp.
template <typename Tile>
TANDEM_DEVICE void clear_rows(uint32_t address, int first_row, uint32_t rows) {
  constexpr int kChunks = Tile::kPanelRowBytes / 16;
  struct Zeros {
    uint32_t word[4];
  };
  TANDEM_NO_UNROLL
  for (int i = ptx::lane_index(); i < 32 * Tile::kPanels * kChunks; i += ptx::kWarpThreads) {
    const int row = i / kChunks % 32;
    if ((rows >> row & 1) == 0) continue;
    const int panel = i / kChunks / 32;
    const int offset = panel * Tile::kPanelBytes + (first_row + row) * Tile::kPanelRowBytes + i % kChunks * 16;
    ptx::store_shared(address + static_cast<uint32_t>(offset), Zeros{});
  }
}

}  // namespace tandem::sm90
