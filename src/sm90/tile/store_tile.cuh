#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"

namespace tandem::sm90 {

// A tile from shared memory to rows row.. of one head, panel by panel; the engine clips rows past the end of the
// buffer, and columns. One thread, which commits.
template <typename Tile>
TANDEM_DEVICE void store_tile(const ptx::TensorMap* map, uint32_t smem, int row, int head, int batch) {
  TANDEM_UNROLL
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    ptx::tma_store_4d(map, smem + panel * Tile::kPanelBytes, panel * Tile::kPanelRowBytes / 2, row, head, batch);
  }
}

// The tile's first `rows` rows, one after the other, to `out`: where the copy engine would write too many. A whole
// warp. `chunks`: of 16 bytes a row, at most 32; `row_bytes`: from row to row of `out`.
template <typename Tile>
TANDEM_DEVICE void store_rows_of_tile(char* out, int64_t row_bytes, uint32_t smem, int rows, int chunks) {
  struct Chunk {
    uint32_t word[4];
  };
  const int byte = ptx::lane_index() * 16;
  if (byte >= chunks * 16) return;
  out += byte;
  TANDEM_NO_UNROLL
  for (int row = 0; row < rows; ++row) {
    ptx::store_global(reinterpret_cast<Chunk*>(out), ptx::load_shared<Chunk>(smem + Tile::chunk_offset(row, byte)));
    out += row_bytes;
  }
}

}  // namespace tandem::sm90
