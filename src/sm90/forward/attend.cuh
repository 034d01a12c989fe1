#pragma once

#include <cstdint>

#include "core/mask.h"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/visible_keys.cuh"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/apply_mask.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/score_transform.cuh"
#include "sm90/tile/softmax.cuh"
#include "sm90/tile/warp_scores.cuh"

// The steady state of a consumer warpgroup: 64 rows of S, P and O in registers, key block after key block.
namespace tandem::sm90 {

template <typename Traits>
struct ConsumerState {
  float acc_s[Traits::kBlockN / 2];          // (64, kBlockN): S, then P
  float acc_o[Traits::kHeadDimV / 2];        // (64, kHeadDimV): O, not normalized; anything before the tile's first P V
  uint32_t frag_p[Traits::kBlockN / 16][4];  // (64, kBlockN) in the element type
  SoftmaxRows rows;
  bool o_begun;                      // P V of this tile has been issued, so that acc_o holds O
  BasicRowInterval<int> visible[2];  // what this thread's rows see, for masked blocks
  PipelineState<Traits::kKStages> k_pipe;
  PipelineState<Traits::kVStages> v_pipe;
};

// What a consumer keeps of a work tile while it is at it; the rest it reads from the slot.
template <typename Traits>
struct ConsumerTile {
  TileSlot<Traits> slot;
  ConsumerBlocks blocks;
  int above, below;  // blocks that only other consumers visit, before this one's and after
  int q;             // number of Q's place
  TANDEM_DEVICE bool visits() const { return blocks.begin < blocks.end; }
};

// Ping-pong: one warpgroup issues its matrix products while the others are at their exponentials. HAZARD: all take as
// many turns, or one waits for ever.
template <typename Traits>
TANDEM_DEVICE void take_turn(int w) {
  if constexpr (Traits::kPingPong) ptx::named_barrier_sync(kTurnBarrier + w, 2 * ptx::kWarpgroupThreads);
}
template <typename Traits>
TANDEM_DEVICE void pass_turn(int w) {
  const int next = w == Traits::kConsumers - 1 ? 0 : w + 1;
  if constexpr (Traits::kPingPong) ptx::named_barrier_arrive(kTurnBarrier + next, 2 * ptx::kWarpgroupThreads);
}

// S = Q K^T. (64, kHeadDim) x (kBlockN, kHeadDim)^T
template <typename Traits>
TANDEM_DEVICE void issue_qk(float (&acc_s)[Traits::kBlockN / 2], int q, int stage) {
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  const uint32_t q_offset = static_cast<uint32_t>(q) * QTile::kBytes;
  const uint32_t k_offset = static_cast<uint32_t>(stage) * KTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kBlockN>::template ss<>(
        acc_s, advance(QTile::k_major(Traits::kSmemQ, step), q_offset),
        advance(KTile::k_major(Traits::kSmemK, step), k_offset), step > 0);
  }
  ptx::wgmma_commit();
}

// O = P V of a tile's first key block, and then O += P V. (64, kBlockN) x (kBlockN, kHeadDimV)
template <typename Traits>
TANDEM_DEVICE void issue_pv(ConsumerState<Traits>& state) {
  using VTile = typename Traits::VTile;
  const uint32_t v_offset = static_cast<uint32_t>(state.v_pipe.index) * VTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kBlockN / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kHeadDimV>::template rs<ptx::Major::kMn>(
        state.acc_o, state.frag_p[step], advance(VTile::mn_major(Traits::kSmemV, step), v_offset),
        step > 0 || state.o_begun);
  }
  ptx::wgmma_commit();
  state.o_begun = true;
}

// What this thread's rows see; only masked blocks ask. Rows past the sequence's end, whose results are dropped, see
// all: a row that sees nothing in its first blocks takes the rare path of the lazy softmax when it first does.
template <typename Traits>
TANDEM_DEVICE void find_visible_keys(BasicRowInterval<int> (&visible)[2], const ForwardParams& params,
                                     const ConsumerTile<Traits>& tile, int w) {
  if (tile.blocks.full_begin == tile.blocks.begin && tile.blocks.full_end == tile.blocks.end) return;
  const TilePlace place = tile.slot.place();
  const TileRows rows = tile.slot.rows();
  const int k_len = tile.slot.keys().k_len;
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = place.first_row + w * kFragmentRows + fragment_row(half);
    visible[half] = {0, k_len};
    if (row < rows.q_len) {
      visible[half] = visible_keys<Traits>(params, rows.q_begin, row, rows.q_len, k_len, place.head, place.batch);
    }
  }
}

// S as the mask and the softmax want it.
template <typename Traits>
TANDEM_DEVICE void transform_and_mask(ConsumerState<Traits>& state, const ForwardParams& params, int n_block) {
  if (Traits::kGeneral && TANDEM_UNLIKELY(params.transform != ScoreTransform::kNone)) {
    if (params.transform == ScoreTransform::kMultiply) {
      multiply_scores(state.acc_s, params.score_factor);
    } else {
      softcap_scores(state.acc_s, params.score_factor);
    }
  }
  apply_mask(state.acc_s, state.visible, n_block * Traits::kBlockN);
}

// How P of a row is made of its scores: 2^((s - subtrahend) scale_log2 - offset).
struct RowExponents {
  float subtrahend;  // the reference where its offset is huge
  float offset;
};
TANDEM_DEVICE RowExponents row_exponents(float reference, float scale_log2) {
  const float offset = offset_of(reference, scale_log2);
  const bool huge = is_huge(offset);
  return {huge ? reference : 0.0f, huge || reference == -INFINITY ? 0.0f : offset};
}

// Largest scores of the thread's two rows in the block.
template <typename Traits>
TANDEM_DEVICE void score_maxima(float (&maximum)[2], const WarpScores<Traits>& scores) {
  maximum[0] = maximum[1] = -INFINITY;
  TANDEM_NO_UNROLL
  for (int column = 0; column < Traits::kBlockN; column += 8) {
    float s[4];
    scores.compute(s, column);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) maximum[half_of(i)] = ptx::max(maximum[half_of(i)], s[i]);
  }
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) maximum[half] = quad_max(maximum[half]);
}

// The reference of a row rises to its largest score; what the row's sum, here, and O are to be multiplied by.
TANDEM_DEVICE float raise_reference(SoftmaxRows& rows, int half, float maximum, float scale_log2) {
  const float before = rows.reference[half];
  rows.reference[half] = ptx::max(maximum, before);
  float rescale = rescale_factor(before, rows.reference[half], scale_log2);
  if (rows.reference[half] == -INFINITY) rescale = 0.0f;  // nothing but scores of -inf, or NaN
  rows.sum[half] *= rescale;
  return rescale;
}

// P, in place of S, and the block's sum of the rows that have outgrown.
template <typename Traits>
TANDEM_DEVICE void remake_p(ConsumerState<Traits>& state, float (&sum)[2], const WarpScores<Traits>& scores,
                            const bool (&grown)[2], float scale_log2) {
  const RowExponents exponents[2] = {row_exponents(state.rows.reference[0], scale_log2),
                                     row_exponents(state.rows.reference[1], scale_log2)};
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kBlockN / 2; i += 4) {
    float s[4];
    scores.compute(s, 2 * i);
    TANDEM_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int half = half_of(k);
      if (!grown[half]) continue;
      state.acc_s[i + k] = ptx::ex2(ptx::fma(s[k] - exponents[half].subtrahend, scale_log2, -exponents[half].offset));
      sum[half] += state.acc_s[i + k];
    }
  }
}

// Rare: a row has outgrown the reference of its softmax. Its scores may have overflowed in 2^S, so they are computed
// again, by this warp alone, from Q and K as they lie in shared memory. P, the block's sums and O of the rows that have
// outgrown are made anew; those of other rows stay as they are, bit for bit [12].
template <typename Traits>
TANDEM_DEVICE void raise_references(ConsumerState<Traits>& state, float (&sum)[2], float scale_log2, int q) {
  const WarpScores<Traits> scores(q, state.k_pipe.index);
  const bool grown[2] = {quad_any(outgrown(sum[0])), quad_any(outgrown(sum[1]))};
  float maximum[2];
  score_maxima(maximum, scores);
  float rescale[2] = {1.0f, 1.0f};
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (!grown[half]) continue;
    rescale[half] = raise_reference(state.rows, half, maximum[half], scale_log2);
    sum[half] = 0.0f;
  }
  remake_p(state, sum, scores, grown, scale_log2);
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kHeadDimV / 2; ++i) state.acc_o[i] *= rescale[half_of(i)];
}

// S to P of a block whose keys all rows see, against the references as they are. `finish_product` waits for the P V
// under way; K is kept until no score is needed again.
template <typename Traits, typename FinishProduct>
TANDEM_DEVICE void lazy_softmax(ConsumerState<Traits>& state, float scale_log2, int q,
                                const FinishProduct& finish_product) {
  using Element = typename Traits::Element;
  const float offset[2] = {offset_of(state.rows.reference[0], scale_log2),
                           offset_of(state.rows.reference[1], scale_log2)};
  float sum[2];
  exponentials<Element, Traits::kPackLag>(state.acc_s, state.frag_p, offset, scale_log2, sum, finish_product);
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (is_huge(offset[half])) sum[half] = INFINITY;  // done again with care
  }
  if (TANDEM_UNLIKELY(ptx::any_sync(outgrown(sum[0]) || outgrown(sum[1])))) {
    raise_references(state, sum, scale_log2, q);
    pack_a_fragments<Element, 0>(state.frag_p, state.acc_s);
  }
  release(Traits::kKEmpty, state.k_pipe);
  state.rows.sum[0] += sum[0];
  state.rows.sum[1] += sum[1];
  pack_a_fragments<Element, Traits::kBlockN / 16 - Traits::kPackLag>(state.frag_p, state.acc_s);
}

// S to P of any block: references follow the maximum. kFirst: of a tile, when there is no O to rescale.
template <bool kFirst, typename Traits, typename FinishProduct>
TANDEM_DEVICE void exact_softmax(ConsumerState<Traits>& state, float scale_log2, const FinishProduct& finish_product) {
  using Element = typename Traits::Element;
  float rescale[2];
  float offset[2];
  follow_maxima(state.rows, state.acc_s, scale_log2, offset, rescale);
  float sum[2];
  exponentials<Element, Traits::kPackLag>(state.acc_s, state.frag_p, offset, scale_log2, sum, finish_product);
  state.rows.sum[0] = ptx::fma(state.rows.sum[0], rescale[0], sum[0]);
  state.rows.sum[1] = ptx::fma(state.rows.sum[1], rescale[1], sum[1]);
  if constexpr (!kFirst) rescale_o(state.acc_o, rescale);
  pack_a_fragments<Element, Traits::kBlockN / 16 - Traits::kPackLag>(state.frag_p, state.acc_s);
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
TANDEM_DEVICE void first_product(ConsumerState<Traits>& state, const ConsumerTile<Traits>& tile, int w,
                                 const Under& under) {
  wait(Traits::kKFull, state.k_pipe);
  take_turn<Traits>(w);
  ptx::wgmma_fence();
  issue_qk<Traits>(state.acc_s, tile.q, state.k_pipe.index);
  if constexpr (kWithLast) {
    wait(Traits::kVFull, state.v_pipe);
    issue_pv(state);
  }
  pass_turn<Traits>(w);
  under();
  ptx::wgmma_wait<0>();
  ptx::wgmma_fence_operand(state.acc_s);
  release(Traits::kKEmpty, state.k_pipe);
  state.k_pipe.advance();
  if constexpr (kWithLast) {
    ptx::wgmma_fence_operand(state.acc_o);
    release(Traits::kVEmpty, state.v_pipe);
    state.v_pipe.advance();
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
  ptx::wgmma_fence_operand(state.acc_o);
  release(Traits::kVEmpty, state.v_pipe);
  state.v_pipe.advance();
}

// P of a tile's first key block.
template <typename Traits>
TANDEM_DEVICE void first_softmax(ConsumerState<Traits>& state, const ForwardParams& params,
                                 const ConsumerBlocks& blocks) {
  if (blocks.full_end < blocks.end || blocks.full_begin == blocks.full_end) {
    transform_and_mask(state, params, blocks.end - 1);
  }
  exact_softmax<true>(state, params.scale_log2, [] {});
}

// Key blocks from n_block down to `last`: S of this one under P V of the one before.
template <typename Traits, bool kMasked>
TANDEM_DEVICE void attend_blocks(ConsumerState<Traits>& state, const ForwardParams& params, int q, int& n_block,
                                 int last, int w) {
  TANDEM_NO_UNROLL
  for (; n_block >= last; --n_block) {
    wait(Traits::kKFull, state.k_pipe);
    take_turn<Traits>(w);
    ptx::wgmma_fence();
    issue_qk<Traits>(state.acc_s, q, state.k_pipe.index);
    wait(Traits::kVFull, state.v_pipe);
    issue_pv(state);
    pass_turn<Traits>(w);
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state.acc_s);
    const auto finish_product = [&state] {
      ptx::wgmma_wait<0>();
      ptx::wgmma_fence_operand(state.acc_o);
      release(Traits::kVEmpty, state.v_pipe);
    };
    if constexpr (Traits::kLazy && !kMasked) {
      lazy_softmax(state, params.scale_log2, q, finish_product);
    } else {
      release(Traits::kKEmpty, state.k_pipe);
      if constexpr (kMasked) transform_and_mask(state, params, n_block);
      exact_softmax<false>(state, params.scale_log2, finish_product);
    }
    state.k_pipe.advance();
    state.v_pipe.advance();
  }
}

// All key blocks of a tile, whose first S is there; the last P V is left to come.
template <typename Traits>
TANDEM_DEVICE void attend_tile(ConsumerState<Traits>& state, const ForwardParams& params,
                               const ConsumerTile<Traits>& tile, int w) {
  const ConsumerBlocks& blocks = tile.blocks;
  first_softmax(state, params, blocks);
  int n_block = blocks.end - 2;
  attend_blocks<Traits, true>(state, params, tile.q, n_block, blocks.full_end, w);
  attend_blocks<Traits, false>(state, params, tile.q, n_block, blocks.full_begin, w);
  attend_blocks<Traits, true>(state, params, tile.q, n_block, blocks.begin, w);
}

}  // namespace tandem::sm90
