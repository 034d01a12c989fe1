#pragma once

#include <cmath>
#include <cstdint>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"

// Online softmax on accumulator fragments. docs/ALGORITHM.md has the recurrence; here exponents are in base 2, in units
// of score * scale_log2, and scale_log2 is positive.
//
// A row's P and sums are relative to its reference, a score whose exponent counts as 0. Any reference gives the same O;
// it only has to keep P in range. Exponents are scale_log2 * score - offset in one rounding, where offset is scale_log2
// * reference, rounded: the same number wherever the row's P and sums are made, so that its rounding cancels. Where it
// is so large that the rounding alone drives P out of range (is_huge), the reference is subtracted from the score
// first.
//
// Blocks go one of two ways:
//   exact   the row's maximum is found first; the reference follows it, but for a slack (follow_maxima)
//   lazy    the reference stays as it is. That it is too small shows in the block's row sum (outgrown), and then, row
//   by
//           row, P is made anew. Blocks after the first few rarely hold a new maximum, and hardly ever a much larger
//           one.
namespace tandem::sm90 {

// Of a thread's two rows.
struct SoftmaxRows {
  float reference[2];   // a score, not scaled; -inf: no key yet
  float sum[2];         // this thread's part of the row's, until reduce_row_sums()
  float normalizer[2];  // at the end: what O is to be multiplied by
};

// Exact blocks: a row is rescaled only when its maximum has outgrown the reference by more than this: P stays under
// 2^8, O and the row sum lose nothing in fp32, and most blocks need no rescaling. Row by row: a row's bits depend on
// that row alone [12].
constexpr float kRescaleSlack = 8.0f;

// Lazy blocks: a thread's part of a row's sum stays below this, and so does every P: within fp16's range.
constexpr float kLargestSum = 32768.0f;

// Offsets beyond this are off by more than 2 when rounded.
constexpr float kLargestOffset = 67108864.0f;
TANDEM_DEVICE bool is_huge(float offset) {
  return fabsf(offset) > kLargestOffset && fabsf(offset) < INFINITY;
}

// NaN has outgrown too.
TANDEM_DEVICE bool outgrown(float sum) {
  return !(sum < kLargestSum);
}

TANDEM_DEVICE float quad_max(float value) {
  value = ptx::max(value, ptx::shuffle_xor(value, 1));
  return ptx::max(value, ptx::shuffle_xor(value, 2));
}
TANDEM_DEVICE float quad_sum(float value) {
  value += ptx::shuffle_xor(value, 1);
  return value + ptx::shuffle_xor(value, 2);
}
TANDEM_DEVICE bool quad_any(bool predicate) {
  uint32_t value = predicate ? 1 : 0;
  value |= ptx::shuffle_xor(value, 1);
  value |= ptx::shuffle_xor(value, 2);
  return value != 0;
}

TANDEM_DEVICE void reset(SoftmaxRows& rows) {
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    rows.reference[half] = -INFINITY;
    rows.sum[half] = 0.0f;
  }
}

// Maxima of the thread's two rows over the tile. Two chains a row, for they are latency-bound.
template <int kRegisters>
TANDEM_DEVICE void row_maxima(float (&maximum)[2], const float (&acc_s)[kRegisters]) {
  float even[2] = {acc_s[0], acc_s[2]};
  float odd[2] = {acc_s[1], acc_s[3]};
  TANDEM_UNROLL
  for (int i = 4; i < kRegisters; i += 2) {
    even[half_of(i)] = ptx::max(even[half_of(i)], acc_s[i]);
    odd[half_of(i)] = ptx::max(odd[half_of(i)], acc_s[i + 1]);
  }
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) maximum[half] = quad_max(ptx::max(even[half], odd[half]));
}

// What exponents of a row are relative to. HAZARD: not to be contracted with a subtraction into an fma: the difference
// of two offsets is to be 0 where the references are equal.
TANDEM_DEVICE float offset_of(float reference, float scale_log2) {
  return ptx::mul(reference, scale_log2);
}

// What the sums and O of a row are to be multiplied by when its reference changes; 0 before its first key.
TANDEM_DEVICE float rescale_factor(float before, float after, float scale_log2) {
  const float offset = offset_of(after, scale_log2);
  const float difference = is_huge(offset) ? (before - after) * scale_log2 : offset_of(before, scale_log2) - offset;
  return ptx::ex2(difference);
}

// The references of an exact block (hidden scores are -inf). offset: what exponents are relative to; rescale: what the
// rows' sums and O so far are to be multiplied by. Scores of rows whose offset is huge come out less their reference.
template <int kRegisters>
TANDEM_DEVICE void follow_maxima(SoftmaxRows& rows, float (&acc_s)[kRegisters], float scale_log2, float (&offset)[2],
                                 float (&rescale)[2]) {
  float maximum[2];
  row_maxima(maximum, acc_s);
  bool huge[2];
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float before = rows.reference[half];
    const float offset_before = offset_of(before, scale_log2);
    if (offset_of(maximum[half], scale_log2) > offset_before + kRescaleSlack) rows.reference[half] = maximum[half];
    // A row that has seen no key keeps -inf; an offset of 0 then makes every P exactly 0, not NaN.
    offset[half] = rows.reference[half] == -INFINITY ? 0.0f : offset_of(rows.reference[half], scale_log2);
    huge[half] = is_huge(offset[half]);
    rescale[half] = ptx::ex2(offset_before - offset[half]);
    if (huge[half]) rescale[half] = rescale_factor(before, rows.reference[half], scale_log2);
  }
  if (TANDEM_UNLIKELY(ptx::any_sync(huge[0] || huge[1]))) {
    TANDEM_UNROLL
    for (int i = 0; i < kRegisters; ++i) {
      if (huge[half_of(i)]) acc_s[i] -= rows.reference[half_of(i)];
    }
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (huge[half]) offset[half] = 0.0f;
    }
  }
}

// S to P, in place: 2^(scale_log2 S - offset); sum: this thread's part of the rows'. The exponentials of the first
// kPackLag groups of 16 columns run under a matrix product that reads `fragments`; then finish_product() waits for it,
// and groups are packed into them as the next ones are computed. The last kPackLag groups are left to the caller.
template <typename Element, int kPackLag, int kRegisters, typename FinishProduct>
TANDEM_DEVICE void exponentials(float (&acc_s)[kRegisters], uint32_t (&fragments)[kRegisters / 8][4],
                                const float (&offset)[2], float scale_log2, float (&sum)[2],
                                const FinishProduct& finish_product) {
  constexpr int kGroups = kRegisters / 8;
  static_assert(0 < kPackLag && kPackLag <= kGroups);
  float even[2] = {0.0f, 0.0f};
  float odd[2] = {0.0f, 0.0f};
  TANDEM_UNROLL
  for (int group = 0; group < kGroups; ++group) {
    TANDEM_UNROLL
    for (int i = 8 * group; i < 8 * group + 8; i += 2) {
      const int half = half_of(i);
      acc_s[i] = ptx::ex2(ptx::fma(acc_s[i], scale_log2, -offset[half]));
      acc_s[i + 1] = ptx::ex2(ptx::fma(acc_s[i + 1], scale_log2, -offset[half]));
      even[half] += acc_s[i];
      odd[half] += acc_s[i + 1];
    }
    if (group == kPackLag - 1) finish_product();
    if (group >= kPackLag) pack_a_fragment<Element>(fragments[group - kPackLag], acc_s, group - kPackLag);
  }
  sum[0] = even[0] + odd[0];
  sum[1] = even[1] + odd[1];
}

// The vote only skips multiplying by exactly 1.
template <int kRegisters>
TANDEM_DEVICE void rescale_o(float (&acc_o)[kRegisters], const float (&rescale)[2]) {
  if (!ptx::any_sync(rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) acc_o[i] *= rescale[half_of(i)];
}

// Row sums over the four threads of a row.
TANDEM_DEVICE void reduce_row_sums(SoftmaxRows& rows) {
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) rows.sum[half] = quad_sum(rows.sum[half]);
}

// After reduce_row_sums(): the row's normalizer, and its LSE (natural log); offset: what its exponents are relative to.
// Where there is a sink, exp(sink) joins the denominator. A row that has seen no key: O is 0, LSE -inf or the sink [5,
// 6].
TANDEM_DEVICE float finish_row(SoftmaxRows& rows, int half, float offset, float sink, bool has_sink) {
  constexpr float kLn2 = 0.693147180559945309f;
  constexpr float kLog2E = 1.44269504088896341f;
  rows.normalizer[half] = 0.0f;
  if (rows.sum[half] == 0.0f) return has_sink ? sink : -INFINITY;
  float reference = offset;
  float scale = 1.0f;
  float total = rows.sum[half];
  if (has_sink) {
    reference = ptx::max(offset, sink * kLog2E);
    scale = ptx::ex2(offset - reference);
    total = ptx::fma(total, scale, ptx::ex2(sink * kLog2E - reference));
  }
  rows.normalizer[half] = scale * ptx::rcp(total);
  return (reference + ptx::lg2(total)) * kLn2;
}

// What a sink adds to the sum of a row's P.
TANDEM_DEVICE float sink_share(float offset, float sink) {
  constexpr float kLog2E = 1.44269504088896341f;
  return ptx::ex2(ptx::fma(sink, kLog2E, -offset));
}

// After finish_row(). P of a row that sees no key is 0, but 0 times a NaN of V is not [5]. The vote only skips rows
// that stay as they are.
template <int kRegisters>
TANDEM_DEVICE void clear_empty_rows(float (&acc_o)[kRegisters], const SoftmaxRows& rows) {
  if (!ptx::any_sync(rows.sum[0] == 0.0f || rows.sum[1] == 0.0f)) return;
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    if (rows.sum[half_of(i)] == 0.0f) acc_o[i] = 0.0f;
  }
}

}  // namespace tandem::sm90
