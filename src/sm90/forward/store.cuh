#pragma once

#include <cstdint>

#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/smem_layout.cuh"

// The store warp: O from shared memory to where it belongs.
namespace tandem::sm90 {

// The copy engine clips rows past the end of the buffer. One thread.
template <typename Traits>
TANDEM_DEVICE void store_by_copy_engine(const ForwardParams& params, uint32_t smem, int row, int head, int batch) {
  using Tile = typename Traits::OTile;
  TANDEM_UNROLL
  for (int panel = 0; panel < Tile::kPanels; ++panel) {
    ptx::tma_store_4d(&params.out, smem + panel * Tile::kPanelBytes, panel * Tile::kPanelRowBytes / Traits::kOutBytes,
                      row, head, batch);
  }
  ptx::bulk_commit();
  ptx::bulk_wait_read<0>();
}

// The last rows of a packed sequence, row by row: the copy engine would overwrite the next sequence's. A whole warp.
template <typename Traits>
TANDEM_DEVICE void store_rows(const ForwardParams& params, uint32_t smem, int row, int rows, int head) {
  using Tile = typename Traits::OTile;
  struct Chunk {
    uint32_t word[4];
  };
  const int chunks = params.headdim_v / 8;
  TANDEM_NO_UNROLL
  for (int i = ptx::lane_index(); i < rows * chunks; i += ptx::kWarpThreads) {
    const int r = i / chunks;
    const int chunk = i % chunks;
    const int64_t offset = (int64_t{row} + r) * params.out_strides.row + head * params.out_strides.head;
    char* const out = static_cast<char*>(params.out_data) + offset * Traits::kOutBytes;
    ptx::store_global(reinterpret_cast<Chunk*>(out) + chunk,
                      ptx::load_shared<Chunk>(smem + Tile::chunk_offset(r, chunk * 16)));
  }
}

// A whole warp.
template <typename Traits>
TANDEM_DEVICE void store_tiles(const ForwardParams& params) {
  TileReader<Traits> reader;
  PipelineState<Traits::kQPlaces> q_pipe;
  while (reader.next()) {
    const TilePlace place = reader.slot().place();
    const TileRows rows = reader.slot().rows();
    TANDEM_NO_UNROLL
    for (int w = 0; w < Traits::kConsumers; ++w) {
      const uint32_t smem = Traits::o_address(q_pipe.index, w);
      const int first_row = place.first_row + w * kFragmentRows;
      const int left = rows.q_rows - first_row;
      wait(Traits::kOFull, q_pipe);
      if (params.sequences == nullptr || left >= kFragmentRows) {
        if (left > 0 && ptx::lane_index() == 0) {
          store_by_copy_engine<Traits>(params, smem, rows.q_begin + first_row, place.head, place.batch);
        }
      } else {
        store_rows<Traits>(params, smem, rows.q_begin + first_row, left, place.head);
      }
      release(Traits::kQEmpty, q_pipe);
      q_pipe.advance();
    }
    reader.release_by_warp();
  }
  if (ptx::thread_rank_anew() % ptx::kWarpThreads == 0) {
    ptx::bulk_wait<0>();  // shared memory must outlive the stores, the grid's end publish them
  }
}

}  // namespace tandem::sm90
