#pragma once

#include <cmath>
#include <cstdint>

#include "core/mask.h"
#include "sm90/forward/consumer_state.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/visible_keys.cuh"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/apply_mask.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/score_transform.cuh"
#include "sm90/tile/softmax.cuh"
#include "sm90/tile/warp_scores.cuh"

// S of a key block to P, in a 16-bit type: masks, and the exact or the lazy softmax of tile/softmax.cuh.
namespace tandem::sm90 {

// What this thread's rows see; only masked blocks ask. Rows past the sequence's end, whose results are dropped, see
// all: a row that sees nothing in its first blocks takes the rare path of the lazy softmax when it first does.
template <typename Traits>
TANDEM_DEVICE void find_visible_keys(BasicRowInterval<int> (&visible)[2], const ForwardParams& params,
                                     const ConsumerTile<Traits>& tile, int w) {
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

}  // namespace tandem::sm90
