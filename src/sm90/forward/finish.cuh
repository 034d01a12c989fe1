#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "sm90/forward/attend.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/smem_layout.cuh"
#include "sm90/tile/softmax.cuh"

// The end of a work tile: row sums, sink, LSE, and O on its way out.
namespace tandem::sm90 {

// Completes the rows' sums, turns them into normalizers, and writes LSE.
template <typename Traits>
TANDEM_DEVICE void finish_rows(ConsumerState<Traits>& state, const ForwardParams& params, TileSlot<Traits> slot,
                               int w) {
  const TilePlace place = slot.place();
  const TileRows rows = slot.rows();
  const bool has_sink = params.sink != nullptr;
  const float sink = has_sink ? ptx::load_global(params.sink + place.head * params.sink_stride) : -INFINITY;
  const int first_row = place.first_row + w * kFragmentRows + fragment_row(0);
  float* const lse = params.lse + place.batch * params.lse_strides.batch + place.head * params.lse_strides.head +
                     (int64_t{rows.q_begin} + first_row) * params.lse_strides.row;
  reduce_row_sums(state.rows);
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    if (row >= rows.q_len) state.rows.sum[half] = 0.0f;
    const float offset =
        Traits::kFp8 ? state.rows.reference[half] : offset_of(state.rows.reference[half], params.scale_log2);
    const bool row_has_sink = has_sink && row < rows.q_len;
    const float lse_of_row = finish_row(state.rows, half, offset, sink, row_has_sink);
    if constexpr (Traits::kFp8) state.rows.normalizer[half] = row_has_sink ? sink_share(offset, sink) : 0.0f;
    if (params.lse != nullptr && row < rows.q_rows && fragment_first_column() == 0) {
      ptx::store_global(lse + 8 * half * params.lse_strides.row, lse_of_row);
    }
  }
}

template <typename Traits>
TANDEM_DEVICE void store_o(uint32_t smem, ConsumerState<Traits>& state, const ForwardParams& params) {
  using Tile = typename Traits::OTile;
  if constexpr (!Traits::kFp8) {
    store_accumulator<typename Traits::Element, Tile>(smem, finished_o(state), state.rows.normalizer);
  } else if (params.out_is_fp16) {
    store_accumulator<Fp16, Tile>(smem, finished_o(state), state.rows.normalizer);
  } else {
    store_accumulator<Bf16, Tile>(smem, finished_o(state), state.rows.normalizer);
  }
}

// O to where the store warp takes it from.
template <typename Traits>
TANDEM_DEVICE void hand_over_o(ConsumerState<Traits>& state, const ForwardParams& params, int q, int w) {
  if constexpr (Traits::kFp8) normalize_by_rounded_sums(state);
  clear_empty_rows(finished_o(state), state.rows);
  ptx::named_barrier_sync(Traits::kEpilogueBarrier + w, ptx::kWarpgroupThreads);  // every warp's wgmmas have read Q
  store_o(Traits::o_address(q, w), state, params);
  ptx::fence_proxy_async_shared();
  ptx::warp_sync();
  ptx::mbarrier_arrive_if(barrier_at(Traits::kOFull, q), ptx::lane_index() == 0);
}

}  // namespace tandem::sm90
