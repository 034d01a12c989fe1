#pragma once

#include <cstdint>

#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/apply_mask.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/softmax.cuh"

// A consumer warpgroup: 64 rows of S, P and O in registers.
namespace tandem::sm90 {

// Registers: 64 + 64 + 32 at headdim 128, of 232.
template <typename Traits>
struct ConsumerState {
  float acc_s[Traits::kBlockN / 2];          // (64, kBlockN): S, then P
  float acc_o[Traits::kHeadDim / 2];         // (64, kHeadDim): O, not normalized
  uint32_t frag_p[Traits::kBlockN / 16][4];  // (64, kBlockN) in the element type
  SoftmaxRows rows;
  VisibleKeys visible[2];
  PipelineState<Traits::kStages> k_pipe, v_pipe;
};

// Ping-pong: one warpgroup issues its matrix products while the other is at its exponentials. HAZARD: both take as many
// turns, or one waits for ever.
TANDEM_DEVICE void take_turn(int w) {
  ptx::named_barrier_sync(kTurnBarrier + w, 2 * ptx::kWarpgroupThreads);
}
TANDEM_DEVICE void pass_turn(int w) {
  ptx::named_barrier_arrive(kTurnBarrier + 1 - w, 2 * ptx::kWarpgroupThreads);
}

// S = Q K^T. (64, kHeadDim) x (kBlockN, kHeadDim)^T
template <typename Traits>
TANDEM_DEVICE void issue_qk(float (&acc_s)[Traits::kBlockN / 2], int w, int stage) {
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  const uint32_t q_offset = static_cast<uint32_t>(w) * QTile::kBytes;
  const uint32_t k_offset = static_cast<uint32_t>(stage) * KTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kBlockN>::template ss<>(
        acc_s, advance(QTile::k_major(Traits::kSmemQ, step), q_offset),
        advance(KTile::k_major(Traits::kSmemK, step), k_offset), step > 0);
  }
  ptx::wgmma_commit();
}

// O += P V. (64, kBlockN) x (kBlockN, kHeadDim)
template <typename Traits>
TANDEM_DEVICE void issue_pv(float (&acc_o)[Traits::kHeadDim / 2], const uint32_t (&frag_p)[Traits::kBlockN / 16][4],
                            int stage) {
  using VTile = typename Traits::VTile;
  const uint32_t v_offset = static_cast<uint32_t>(stage) * VTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kBlockN / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kHeadDim>::template rs<ptx::Major::kMn>(
        acc_o, frag_p[step], advance(VTile::mn_major(Traits::kSmemV, step), v_offset), true);
  }
  ptx::wgmma_commit();
}

// What this thread's rows see; only masked blocks ask.
TANDEM_DEVICE void find_visible_keys(VisibleKeys (&visible)[2], const ForwardParams& params, const ForwardTile& tile,
                                     int first_row) {
  if (tile.full_begin == tile.begin && tile.full_end == tile.end) return;
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    visible[half] = visible_keys(params.mask, first_row + fragment_row(half), params.seqlen_q, params.seqlen_k);
  }
}

// The first key block of a tile: there is no P yet whose product could run beside it.
template <typename Traits>
TANDEM_DEVICE void first_block(ConsumerState<Traits>& state, const ForwardParams& params, const ForwardTile& tile,
                               int first_row, int w) {
  wait(Traits::kKFull, state.k_pipe);
  take_turn(w);
  ptx::wgmma_fence();
  issue_qk<Traits>(state.acc_s, w, state.k_pipe.index);
  pass_turn(w);
  find_visible_keys(state.visible, params, tile, first_row);
  ptx::wgmma_wait<0>();
  ptx::wgmma_fence_operand(state.acc_s);
  release(Traits::kKEmpty, state.k_pipe);
  state.k_pipe.advance();
  const int n_block = tile.end - 1;
  const bool full = tile.full_begin <= n_block && n_block < tile.full_end;
  if (!full) apply_mask(state.acc_s, state.visible, n_block * Traits::kBlockN);
  float rescale[2];  // of nothing
  softmax_step(state.acc_s, state.rows, rescale, params.scale_log2);
  pack_a_fragments<typename Traits::Element>(state.frag_p, state.acc_s);
}

// Key blocks from n_block down to `last`: S of this one under P V of the one before.
template <typename Traits, bool kMasked>
TANDEM_DEVICE void attend_blocks(ConsumerState<Traits>& state, const ForwardParams& params, int& n_block, int last,
                                 int w) {
  TANDEM_NO_UNROLL
  for (; n_block >= last; --n_block) {
    float rescale[2];
    wait(Traits::kKFull, state.k_pipe);
    take_turn(w);
    ptx::wgmma_fence();
    issue_qk<Traits>(state.acc_s, w, state.k_pipe.index);
    wait(Traits::kVFull, state.v_pipe);
    issue_pv<Traits>(state.acc_o, state.frag_p, state.v_pipe.index);
    pass_turn(w);
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state.acc_s);
    release(Traits::kKEmpty, state.k_pipe);
    if constexpr (kMasked) apply_mask(state.acc_s, state.visible, n_block * Traits::kBlockN);
    softmax_step(state.acc_s, state.rows, rescale, params.scale_log2);
    ptx::wgmma_wait<0>();
    ptx::wgmma_fence_operand(state.acc_o);
    release(Traits::kVEmpty, state.v_pipe);
    rescale_o(state.acc_o, rescale);
    pack_a_fragments<typename Traits::Element>(state.frag_p, state.acc_s);
    state.k_pipe.advance();
    state.v_pipe.advance();
  }
}

template <typename Traits>
TANDEM_DEVICE void store_lse(const ForwardParams& params, const ForwardTile& tile, const SoftmaxRows& rows,
                             int first_row) {
  if (params.lse == nullptr || ptx::lane_index() % 4 != 0) return;
  float* lse = params.lse + tile.batch * params.lse_batch_stride + tile.head * params.lse_head_stride;
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + fragment_row(half);
    if (row < params.seqlen_q) ptx::store_global(lse + row * params.lse_row_stride, log_sum_exp(rows, half));
  }
}

// P V of the last key block, and LSE under it.
template <typename Traits>
TANDEM_DEVICE void last_product(ConsumerState<Traits>& state, const ForwardParams& params, const ForwardTile& tile,
                                int first_row) {
  wait(Traits::kVFull, state.v_pipe);
  ptx::wgmma_fence();
  issue_pv<Traits>(state.acc_o, state.frag_p, state.v_pipe.index);
  reduce_row_sums(state.rows);
  store_lse<Traits>(params, tile, state.rows, first_row);
  ptx::wgmma_wait<0>();
  ptx::wgmma_fence_operand(state.acc_o);
  release(Traits::kVEmpty, state.v_pipe);
  state.v_pipe.advance();
}

// O to the place of Q, for the store thread.
template <typename Traits>
TANDEM_DEVICE void hand_over_o(ConsumerState<Traits>& state, int w) {
  clear_empty_rows(state.acc_o, state.rows);
  const float scale[2] = {normalizer(state.rows, 0), normalizer(state.rows, 1)};
  ptx::named_barrier_sync(kEpilogueBarrier + w, ptx::kWarpgroupThreads);  // every warp's wgmmas have read Q
  store_accumulator<typename Traits::Element, typename Traits::QTile>(
      Traits::kSmemQ + static_cast<uint32_t>(w) * Traits::QTile::kBytes, state.acc_o, scale);
  ptx::fence_proxy_async_shared();
  ptx::warp_sync();
  ptx::mbarrier_arrive_if(barrier_at(Traits::kOFull, w), ptx::lane_index() == 0);
}

template <typename Traits>
TANDEM_DEVICE void consume_tile(ConsumerState<Traits>& state, const ForwardParams& params, const ForwardTile& tile,
                                int w) {
  const int first_row = tile.m_block * Traits::kBlockM + w * kFragmentRows;
  clear(state.acc_o);
  reset(state.rows);
  if (tile.begin < tile.end) {
    first_block(state, params, tile, first_row, w);
    int n_block = tile.end - 2;
    attend_blocks<Traits, true>(state, params, n_block, tile.full_end, w);
    attend_blocks<Traits, false>(state, params, n_block, tile.full_begin, w);
    attend_blocks<Traits, true>(state, params, n_block, tile.begin, w);
    last_product(state, params, tile, first_row);
  } else {
    store_lse<Traits>(params, tile, state.rows, first_row);
  }
  hand_over_o(state, w);
}

// Warpgroup w of the consumers.
template <typename Traits>
TANDEM_DEVICE void consume(const ForwardParams& params, int w) {
  ConsumerState<Traits> state;
  PipelineState<Traits::kTileStages> tile_pipe;
  uint32_t q_phase = 0;
  if (w == 1) pass_turn(w);  // consumer 0 begins
  for (;;) {
    const ForwardTile tile = receive_tile<Traits>(tile_pipe);
    release(Traits::kTileEmpty, tile_pipe);
    if (!tile.valid) break;
    ptx::mbarrier_wait(barrier_at(Traits::kQFull, w), q_phase);
    consume_tile(state, params, tile, w);
    q_phase ^= 1;
    tile_pipe.advance();
  }
  if (w == 0) take_turn(w);  // the turn that consumer 1 has passed last
}

}  // namespace tandem::sm90
