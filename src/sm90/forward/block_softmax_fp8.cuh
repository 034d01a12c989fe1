#pragma once

#include <cmath>
#include <cstdint>

#include "sm90/forward/block_softmax.cuh"
#include "sm90/forward/consumer_state.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/scales.cuh"
#include "sm90/forward/traits.h"
#include "sm90/forward/two_levels.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/apply_mask.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/score_transform.cuh"
#include "sm90/tile/softmax_fp8.cuh"
#include "sm90/tile/warp_scores.cuh"

// S of a key block to P, in e4m3: scales, masks, and the softmax of tile/softmax_fp8.cuh.
namespace tandem::sm90 {

// What a tile's products are to be multiplied by, but for K's scale.
template <typename Traits>
TANDEM_DEVICE float q_scale_of(const ForwardParams& params, const ConsumerTile<Traits>& tile, int w) {
  const bool softcap = Traits::kGeneral && params.transform == ScoreTransform::kSoftcap;
  return ptx::mul(softcap ? params.score_factor : params.scale_log2, tile.slot.q_scale(w));
}

// Of the block that K's stage holds; before the stage is released.
template <typename Traits>
TANDEM_DEVICE void read_scales(ConsumerState<Traits>& state) {
  const float k_scale = ptx::load_shared<float>(scale_at(Traits::kScalesK, state.k_pipe.index));
  state.score_scale = ptx::mul(state.q_scale, k_scale);
  state.next_v_scale = ptx::load_shared<float>(scale_at(Traits::kScalesV, state.k_pipe.index));
}

// Below it, and where it is not positive, scores are multiplied before the mask: -inf times 0 would be a NaN.
constexpr float kSmallestScoreScale = 1e-30f;

// S as the mask and the softmax want it; afterwards score_scale turns it into exponents, and is positive. to: the
// exponent of the rows' largest P, should they get their first reference.
template <typename Traits>
TANDEM_DEVICE void prepare_scores_fp8(ConsumerState<Traits>& state, float (&to)[2], const ForwardParams& params,
                                      const ConsumerTile<Traits>& tile, int n_block, bool masked, int w) {
  if (Traits::kGeneral && TANDEM_UNLIKELY(params.transform == ScoreTransform::kSoftcap)) {
    softcap_scores(state.acc_s, state.score_scale);
    state.score_scale = params.scale_log2;
  } else if (TANDEM_UNLIKELY(!(state.score_scale >= kSmallestScoreScale))) {
    multiply_scores(state.acc_s, state.score_scale);
    state.score_scale = 1.0f;
  }
  to[0] = to[1] = kTopExponent;
  if (masked) {
    const int first_key = n_block * Traits::kBlockN;
    BasicRowInterval<int> visible[2];
    find_visible_keys(visible, params, tile, w);
    apply_mask(state.acc_s, visible, first_key);
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      to[half] =
          exponent_for(min_of(visible[half].hi, first_key + Traits::kBlockN) - max_of(visible[half].lo, first_key));
    }
  }
}

// S to P of any block: references follow the maximum. kFirst: of a tile, when there is no O to rescale.
template <bool kFirst, typename Traits, typename FinishProduct>
TANDEM_DEVICE void exact_softmax_fp8(ConsumerState<Traits>& state, const float (&to)[2],
                                     const FinishProduct& finish_product) {
  float rescale[2];
  const Fp8Exponents exponents = follow_maxima_fp8<kFirst>(state.rows, state.acc_s, state.score_scale, to, rescale);
  float sum[2];
  exponentials_fp8<Traits::kPackLag>(state.acc_s, state.frag_p, exponents, sum, finish_product);
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    state.rows.sum[half] = ptx::fma(state.rows.sum[half], rescale[half], sum[half]);
  }
  if constexpr (!kFirst) rescale_levels(state, rescale);
}

// The largest exponents of the thread's two rows in the block, from Q and K in shared memory.
template <typename Traits>
TANDEM_DEVICE void top_exponents(float (&top)[2], const WarpScores<Traits>& scores, float score_scale) {
  top[0] = top[1] = -INFINITY;
  TANDEM_NO_UNROLL
  for (int column = 0; column < Traits::kBlockN; column += 8) {
    float s[4];
    scores.compute(s, column);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) top[half_of(i)] = ptx::max(top[half_of(i)], ptx::mul(s[i], score_scale));
  }
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) top[half] = quad_max(top[half]);
}

// P, in place of S, and the block's sum, of the rows named.
template <typename Traits>
TANDEM_DEVICE void remake_p8(ConsumerState<Traits>& state, float (&sum)[2], const WarpScores<Traits>& scores,
                             const bool (&remade)[2]) {
  const float offset[2] = {offset_for(state.rows.reference[0]), offset_for(state.rows.reference[1])};
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (remade[half]) sum[half] = 0.0f;
  }
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kBlockN / 2; i += 4) {
    float s[4];
    scores.compute(s, 2 * i);
    TANDEM_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int half = half_of(k);
      if (!remade[half]) continue;
      state.acc_s[i + k] = ptx::ex2(ptx::mul(s[k], state.score_scale) - offset[half]);
      sum[half] += state.acc_s[i + k];
    }
  }
}

// Is it time to look at the rows' sums, after the block n_block? With the second of a tile, and with one in 512 keys.
template <typename Traits>
TANDEM_DEVICE bool sums_are_due(const ConsumerState<Traits>& state, const ForwardParams& params, int n_block) {
  return state.pv_blocks == 1 && (params.promotion_blocks > 1 || n_block % 4 == 0);
}

// By how much the references of the thread's rows are to fall. sum: of the block, this thread's part. All lanes.
template <typename Traits>
TANDEM_DEVICE void falls_by_sums(float (&fall)[2], const ConsumerState<Traits>& state, const float (&sum)[2]) {
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    fall[half] = fall_of(quad_sum(state.rows.sum[half] + sum[half]));
  }
}

// Some P of a warp is 448 or beyond, or some row's sum says that its reference is to fall. The
// references of the rows concerned rise, or fall: P, the block's sums, O and the rows' sums are multiplied by a power
// of two. Where 2^x or their sum was too large for fp32, or the reference is so large that exponents must be taken
// relative to it before they are rounded, P is made anew, by this warp alone, from Q and K as they lie in shared
// memory. Other rows stay as they are, bit for bit [12].
template <typename Traits>
TANDEM_DEVICE void move_references_fp8(ConsumerState<Traits>& state, float (&sum)[2], const float (&fall)[2], int q) {
  float largest[2];
  row_maxima(largest, state.acc_s);
  float (&reference)[2] = state.rows.reference;
  float rescale[2] = {1.0f, 1.0f};
  const bool remade[2] = {largest[0] > kLargestScaledP8 || is_huge(reference[0]),
                          largest[1] > kLargestScaledP8 || is_huge(reference[1])};
  const float before[2] = {reference[0], reference[1]};
  const WarpScores<Traits> scores(q, state.k_pipe.index);
  const bool any_remade = ptx::any_sync(remade[0] || remade[1]);
  float top[2] = {-INFINITY, -INFINITY};
  if (any_remade) top_exponents(top, scores, state.score_scale);
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (remade[half]) {
      reference[half] = follow_top(before[half], top[half]);
    } else if (largest[half] > kLargestP8) {
      reference[half] = before[half] + excess_of(largest[half]);
    } else {
      reference[half] = before[half] - fall[half];
    }
    rescale[half] = ptx::ex2(before[half] - offset_for(reference[half]));
    state.rows.sum[half] *= rescale[half];
    sum[half] *= rescale[half];
  }
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kBlockN / 2; ++i) state.acc_s[i] *= rescale[half_of(i)];
  if (any_remade) remake_p8(state, sum, scores, remade);
  rescale_levels(state, rescale);
  TANDEM_UNROLL
  for (int step = 0; step < ConsumerState<Traits>::kPSteps; ++step) pack_p8(state.frag_p[step], state.acc_s, step);
}

// S to P of a block whose keys all rows see, against the references as they are. `finish_product` waits for the P V
// under way; K is kept until no score is needed again.
template <typename Traits, typename FinishProduct>
TANDEM_DEVICE void lazy_softmax_fp8(ConsumerState<Traits>& state, const ForwardParams& params, int n_block, int q,
                                    const FinishProduct& finish_product) {
  const float (&reference)[2] = state.rows.reference;
  const Fp8Exponents exponents{{state.score_scale, state.score_scale}, {reference[0], reference[1]}};
  float sum[2];
  const uint32_t limits = exponentials_fp8<Traits::kPackLag>(state.acc_s, state.frag_p, exponents, sum, finish_product);
  float fall[2] = {0.0f, 0.0f};
  if (sums_are_due(state, params, n_block)) falls_by_sums(fall, state, sum);
  const bool move =
      has_reached_limit(limits) || is_huge(reference[0]) || is_huge(reference[1]) || fall[0] > 0.0f || fall[1] > 0.0f;
  if (TANDEM_UNLIKELY(ptx::any_sync(move))) move_references_fp8(state, sum, fall, q);
  release(Traits::kKEmpty, state.k_pipe);
  state.rows.sum[0] += sum[0];
  state.rows.sum[1] += sum[1];
}

// One key block, but a tile's first.
template <bool kMasked, typename Traits, typename FinishProduct>
TANDEM_DEVICE void softmax_fp8(ConsumerState<Traits>& state, const ForwardParams& params,
                               const ConsumerTile<Traits>& tile, int n_block, int w,
                               const FinishProduct& finish_product) {
  read_scales(state);
  if constexpr (kMasked) {
    release(Traits::kKEmpty, state.k_pipe);
    float to[2];
    prepare_scores_fp8(state, to, params, tile, n_block, true, w);
    exact_softmax_fp8<false>(state, to, finish_product);
  } else {
    lazy_softmax_fp8(state, params, n_block, tile.q, finish_product);
  }
}

}  // namespace tandem::sm90
