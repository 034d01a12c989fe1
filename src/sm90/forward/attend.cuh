#pragma once

#include <cstdint>

#include "sm90/forward/block_softmax.cuh"
#include "sm90/forward/block_softmax_fp8.cuh"
#include "sm90/forward/consumer_state.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/scales.cuh"
#include "sm90/forward/traits.h"
#include "sm90/forward/two_levels.cuh"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"

// The steady state of a consumer warpgroup: 64 rows of S, P and O in registers, key block after key block.
namespace tandem::sm90 {

// S = Q K^T. (64, kHeadDim) x (kBlockN, kHeadDim)^T
template <typename Traits>
TANDEM_DEVICE void issue_qk(float (&acc_s)[Traits::kBlockN / 2], int q, int stage) {
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  const uint32_t q_offset = static_cast<uint32_t>(q) * Traits::kQPlaceBytes;
  const uint32_t k_offset = static_cast<uint32_t>(stage) * KTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < QTile::kRowBytes / 32; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kBlockN>::template ss<>(
        acc_s, advance(QTile::k_major(Traits::kSmemQ, step), q_offset),
        advance(KTile::k_major(Traits::kSmemK, step), k_offset), step > 0);
  }
  ptx::wgmma_commit();
}

// The tile's Q to registers; no S is under way.
template <typename Traits>
TANDEM_DEVICE void load_q_fragments(ConsumerState<Traits>& state, int q) {
  using QTile = typename Traits::QTile;
  const FragmentThread thread = fragment_thread();
  const int row = 16 * thread.warp + thread.lane % 16;  // ldmatrix: matrices 0, 1 are rows 0-7, 8-15; 2, 3 the next
  const int byte = thread.lane / 16 * 16;               // 16 bytes of them
  const uint32_t place = Traits::kSmemQ + static_cast<uint32_t>(q) * Traits::kQPlaceBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kHeadDim / 32; ++step) {
    ptx::ldmatrix_x4(state.frag_q[step], place + QTile::chunk_offset(row, step * 32 + byte));
  }
}

// S = Q K^T with Q in registers.
template <typename Traits>
TANDEM_DEVICE void issue_qk_from_registers(ConsumerState<Traits>& state, int stage) {
  using KTile = typename Traits::KTile;
  const uint32_t k_offset = static_cast<uint32_t>(stage) * KTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kHeadDim / 32; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kBlockN>::template rs<>(
        state.acc_s, state.frag_q[step], advance(KTile::k_major(Traits::kSmemK, step), k_offset), step > 0);
  }
  ptx::wgmma_commit();
}

// S of the block in K's stage, of the tile whose Q lies in place q.
template <typename Traits>
TANDEM_DEVICE void issue_s(ConsumerState<Traits>& state, int q) {
  if constexpr (Traits::kQInRegisters) {
    issue_qk_from_registers(state, state.k_pipe.index);
  } else {
    issue_qk<Traits>(state.acc_s, q, state.k_pipe.index);
  }
}

// O = P V of a tile's first key block, and then O += P V. (64, kBlockN) x (kBlockN, kHeadDimV)
template <typename Traits>
TANDEM_DEVICE void issue_pv_16bit(ConsumerState<Traits>& state, uint32_t v_offset) {
  using VTile = typename Traits::VTile;
  TANDEM_UNROLL
  for (int step = 0; step < ConsumerState<Traits>::kPSteps; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kHeadDimV>::template rs<ptx::Major::kMn>(
        state.acc_o, state.frag_p[step], advance(VTile::mn_major(Traits::kSmemV, step), v_offset),
        step > 0 || state.o_begun);
  }
  state.o_begun = true;
}

// The same of the sum in acc_pv, and of P alone. (64, kBlockN) x (kBlockN, kHeadDimV and ones)
template <typename Traits>
TANDEM_DEVICE void issue_pv_fp8(ConsumerState<Traits>& state, uint32_t v_offset) {
  using VTile = typename Traits::VTile;
  TANDEM_UNROLL
  for (int step = 0; step < ConsumerState<Traits>::kPSteps; ++step) {
    const bool accumulate = step > 0 || (Traits::kSumIsBf16 ? state.o_begun : state.pv_blocks > 0);
    ptx::Wgmma<E4m3, Traits::kProductColumns>::template rs<>(
        state.acc_pv, state.frag_p[step], advance(VTile::k_major(Traits::kSmemV, step), v_offset), accumulate);
    if constexpr (Traits::kOnesApart) {
      ptx::Wgmma<E4m3, Traits::kOnes>::template rs<>(state.acc_ones, state.frag_p[step],
                                                     VTile::k_major(Traits::kSmemOnes, step), accumulate);
    }
  }
  state.o_begun = true;
}

template <typename Traits>
TANDEM_DEVICE void issue_pv(ConsumerState<Traits>& state) {
  const uint32_t v_offset = static_cast<uint32_t>(state.v_pipe.index) * Traits::kVStageBytes;
  if constexpr (Traits::kFp8) {
    issue_pv_fp8(state, v_offset);
  } else {
    issue_pv_16bit(state, v_offset);
  }
  ptx::wgmma_commit();
}

// After the wait for the product, before V is released.
template <typename Traits>
TANDEM_DEVICE void finish_pv(ConsumerState<Traits>& state) {
  if constexpr (Traits::kFp8) {
    ptx::wgmma_fence_operand(state.acc_pv);
    if constexpr (Traits::kOnesApart) ptx::wgmma_fence_operand(state.acc_ones);
    ++state.pv_blocks;
  } else {
    ptx::wgmma_fence_operand(state.acc_o);
  }
}

// A block's K, or V, that only other consumers visit: unread. K's takes a turn, as it does for them.
template <typename Traits>
TANDEM_DEVICE void skip_k(ConsumerState<Traits>& state, int w) {
  take_turn<Traits>(w);
  pass_turn<Traits>(w);
  wait(Traits::kKFull, state.k_pipe);
  release(Traits::kKEmpty, state.k_pipe);
  state.k_pipe.advance();
}
template <typename Traits>
TANDEM_DEVICE void skip_v(ConsumerState<Traits>& state) {
  wait(Traits::kVFull, state.v_pipe);
  release(Traits::kVEmpty, state.v_pipe);
  state.v_pipe.advance();
}
template <typename Traits>
TANDEM_DEVICE void skip_blocks(ConsumerState<Traits>& state, int count, int w) {
  TANDEM_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    skip_k(state, w);
    skip_v(state);
  }
}

// S of a tile's first key block and, if kWithLast, O += P V of the last block of the tile before. `under` is done while
// they run; then both are complete.
template <typename Traits, bool kWithLast, typename Under>
TANDEM_DEVICE void first_product(ConsumerState<Traits>& state, const ForwardParams& params,
                                 const ConsumerTile<Traits>& tile, int w, const Under& under) {
  wait(Traits::kKFull, state.k_pipe);
  if constexpr (Traits::kQInRegisters) load_q_fragments(state, tile.q);
  take_turn<Traits>(w);
  ptx::wgmma_fence();
  issue_s(state, tile.q);
  if constexpr (kWithLast) {
    wait(Traits::kVFull, state.v_pipe);
    issue_pv(state);
  }
  pass_turn<Traits>(w);
  under();
  ptx::wgmma_wait<0>();
  ptx::wgmma_fence_operand(state.acc_s);
  if constexpr (Traits::kFp8) {
    state.q_scale = q_scale_of<Traits>(params, tile, w);
    read_scales(state);
  }
  release(Traits::kKEmpty, state.k_pipe);
  state.k_pipe.advance();
  if constexpr (kWithLast) {
    finish_pv(state);
    release(Traits::kVEmpty, state.v_pipe);
    state.v_pipe.advance();
    if constexpr (Traits::kFp8) promote(state, true);
  }
}

// O += P V of the last block of a tile, on its own.
template <typename Traits, typename Under>
TANDEM_DEVICE void last_product(ConsumerState<Traits>& state, const Under& under) {
  wait(Traits::kVFull, state.v_pipe);
  ptx::wgmma_fence();
  issue_pv(state);
  under();
  ptx::wgmma_wait<0>();
  finish_pv(state);
  release(Traits::kVEmpty, state.v_pipe);
  state.v_pipe.advance();
  if constexpr (Traits::kFp8) promote(state, true);
}

// P of a tile's first key block.
template <typename Traits>
TANDEM_DEVICE void first_softmax(ConsumerState<Traits>& state, const ForwardParams& params,
                                 const ConsumerTile<Traits>& tile, int w) {
  const ConsumerBlocks blocks = tile.slot.blocks(w);
  const bool masked = blocks.full_end < blocks.end || blocks.full_begin == blocks.full_end;
  if constexpr (Traits::kFp8) {
    float to[2];
    prepare_scores_fp8(state, to, params, tile, blocks.end - 1, masked, w);
    exact_softmax_fp8<true>(state, to, [] {});
    begin_units(state);
  } else {
    if (masked) transform_and_mask(state, params, blocks.end - 1);
    exact_softmax<true>(state, params.scale_log2, [] {});
  }
}

// Key blocks from n_block down to `last`: S of this one under P V of the one before.
template <typename Traits, bool kMasked>
TANDEM_DEVICE void attend_blocks(ConsumerState<Traits>& state, const ForwardParams& params,
                                 const ConsumerTile<Traits>& tile, int& n_block, int last, int w) {
  TANDEM_NO_UNROLL
  for (; n_block >= last; --n_block) {
    wait(Traits::kKFull, state.k_pipe);
    take_turn<Traits>(w);
    ptx::wgmma_fence();
    issue_s(state, tile.q);
    wait(Traits::kVFull, state.v_pipe);
    issue_pv(state);
    pass_turn<Traits>(w);
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state.acc_s);
    const auto finish_product = [&state] {
      ptx::wgmma_wait<0>();
      finish_pv(state);
      release(Traits::kVEmpty, state.v_pipe);
    };
    if constexpr (Traits::kFp8) {
      state.sum_rescale[0] = state.sum_rescale[1] = 1.0f;
      softmax_fp8<kMasked>(state, params, tile, n_block, w, finish_product);
      promote_if_due(state, params.promotion_blocks);
      change_unit(state);
    } else if constexpr (Traits::kLazy && !kMasked) {
      lazy_softmax(state, params.scale_log2, tile.q, finish_product);
    } else {
      release(Traits::kKEmpty, state.k_pipe);
      if constexpr (kMasked) transform_and_mask(state, params, n_block);
      exact_softmax<false>(state, params.scale_log2, finish_product);
    }
    state.k_pipe.advance();
    state.v_pipe.advance();
  }
}

// All key blocks of a tile, whose first S is there; the last P V is left to come. Which they are is read from the slot
// as it is needed, rather than kept in registers.
template <typename Traits>
TANDEM_DEVICE void attend_tile(ConsumerState<Traits>& state, const ForwardParams& params,
                               const ConsumerTile<Traits>& tile, int w) {
  first_softmax(state, params, tile, w);
  int n_block = tile.slot.blocks(w).end - 2;
  attend_blocks<Traits, true>(state, params, tile, n_block, tile.slot.blocks(w).full_end, w);
  attend_blocks<Traits, false>(state, params, tile, n_block, tile.slot.blocks(w).full_begin, w);
  attend_blocks<Traits, true>(state, params, tile, n_block, tile.slot.blocks(w).begin, w);
}

}  // namespace tandem::sm90
