#pragma once

#include <cstdint>

#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"

namespace tandem::sm90 {

// Rows [row, row + Tile::kRows) of one head, panel by panel, from a map with axes (headdim, rows, heads, batch); counts
// its bytes on `full`, which expects them. One thread, which knows the space to be free.
template <typename Tile, int kElementBytes = 2>
TANDEM_DEVICE void load_panels(uint32_t smem, const ptx::TensorMap* map, uint32_t full, int row, int head, int batch) {
  TANDEM_UNROLL
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    ptx::tma_load_4d(smem + panel * Tile::kPanelBytes, map, full, panel * Tile::kPanelRowBytes / kElementBytes, row,
                     head, batch);
  }
}

// The same, alone on its barrier: completes on `full`.
template <typename Tile, int kElementBytes = 2>
TANDEM_DEVICE void load_tile(uint32_t smem, const ptx::TensorMap* map, uint32_t full, int row, int head, int batch) {
  ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes);
  load_panels<Tile, kElementBytes>(smem, map, full, row, head, batch);
}

}  // namespace tandem::sm90
