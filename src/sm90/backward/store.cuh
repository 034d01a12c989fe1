#pragma once

#include <cstdint>

#include "sm90/backward/params.h"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/store_tile.cuh"

// The store warp: dK and dV from shared memory to where they belong.
namespace tandem::sm90 {

// One gradient of a tile.
struct GradientStore {
  const ptx::TensorMap* map;
  void* data;
  const RowStrides* strides;
  int headdim;
};

// A whole warp.
template <typename Traits, typename Tile>
TANDEM_DEVICE void store_gradient(const BackwardParams& params, BackwardSlot<Traits> slot, const GradientStore& to,
                                  uint32_t place) {
  const TileKeyRange keys = slot.keys();
  const int head = slot.head().key_head;
  TANDEM_NO_UNROLL
  for (int group = 0; group < Traits::kKeyGroups; ++group) {
    const uint32_t smem = place + static_cast<uint32_t>(group) * Tile::kBytes;
    const int first_key = keys.first_key + group * 64;
    const int left = keys.k_rows - first_key;
    const int row = keys.k_begin + first_key;
    if (left <= 0) continue;
    if (params.sequences == nullptr || left >= 64) {
      if (ptx::lane_index() == 0) store_tile<Tile>(to.map, smem, row, head, slot.sequence().batch);
    } else {  // the last keys of a packed sequence: the copy engine would overwrite the next sequence's
      char* const out = static_cast<char*>(to.data) + (row * to.strides->row + head * to.strides->head) * 2;
      store_rows_of_tile<Tile>(out, to.strides->row * 2, smem, left, to.headdim / 8);
    }
  }
}

// A whole warp.
template <typename Traits>
TANDEM_DEVICE void store_gradients(const BackwardParams& params) {
  BackwardReader<Traits> reader;
  while (reader.next()) {
    ptx::mbarrier_wait(Traits::kGradsFull, reader.parity());
    store_gradient<Traits, typename Traits::DkTile>(
        params, reader.slot(), {&params.dk, params.dk_data, &params.dk_strides, params.headdim}, Traits::kSmemK);
    store_gradient<Traits, typename Traits::DvTile>(
        params, reader.slot(), {&params.dv, params.dv_data, &params.dv_strides, params.headdim_v}, Traits::kSmemV);
    if (ptx::lane_index() == 0) {
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
    ptx::warp_sync();
    ptx::mbarrier_arrive_if(Traits::kKvEmpty, ptx::lane_index() == 0);
    reader.release_by_warp();
  }
  if (ptx::lane_index() == 0)
    ptx::bulk_wait<0>();  // shared memory must outlive the stores, the grid's end publish them
}

}  // namespace tandem::sm90
