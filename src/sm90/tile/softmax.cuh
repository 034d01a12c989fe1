#pragma once

#include <cmath>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"

// Online softmax on accumulator fragments. docs/ALGORITHM.md has the recurrence; here exponents are in base 2, in units
// of score * softmax_scale * log2(e). The scale is positive.
namespace tandem::sm90 {

// Of a thread's two rows.
struct SoftmaxRows {
  float reference[2];  // the exponent that counts as 0, at most kRescaleSlack below the maximum; -inf: no key yet
  float sum[2];        // this thread's part of the row's, until reduce_row_sums()
};

// A row is rescaled only when its maximum has outgrown the reference by more than this: P stays under 2^8, O and the
// row sum lose nothing in fp32, and most tiles need no rescaling. Row by row: a row's bits depend on that row alone
// [12].
constexpr float kRescaleSlack = 8.0f;

TANDEM_DEVICE float quad_max(float value) {
  value = ptx::max(value, ptx::shuffle_xor(value, 1));
  return ptx::max(value, ptx::shuffle_xor(value, 2));
}
TANDEM_DEVICE float quad_sum(float value) {
  value += ptx::shuffle_xor(value, 1);
  return value + ptx::shuffle_xor(value, 2);
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

// S (raw scores, hidden ones -inf) to P, in place. rescale[h] is what O's rows so far are to be multiplied by.
template <int kRegisters>
TANDEM_DEVICE void softmax_step(float (&acc_s)[kRegisters], SoftmaxRows& rows, float (&rescale)[2], float scale_log2) {
  float maximum[2];
  row_maxima(maximum, acc_s);
  float offset[2];
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float before = rows.reference[half];
    const float exponent = maximum[half] * scale_log2;
    if (exponent > before + kRescaleSlack) rows.reference[half] = exponent;
    // A row that has seen no key keeps -inf; an offset of 0 then makes every P exactly 0, not NaN.
    offset[half] = rows.reference[half] == -INFINITY ? 0.0f : rows.reference[half];
    rescale[half] = ptx::ex2(before - offset[half]);
  }
  float sum[2] = {0.0f, 0.0f};
  float odd_sum[2] = {0.0f, 0.0f};
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; i += 2) {
    const int half = half_of(i);
    acc_s[i] = ptx::ex2(ptx::fma(acc_s[i], scale_log2, -offset[half]));
    acc_s[i + 1] = ptx::ex2(ptx::fma(acc_s[i + 1], scale_log2, -offset[half]));
    sum[half] += acc_s[i];
    odd_sum[half] += acc_s[i + 1];
  }
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    rows.sum[half] = ptx::fma(rows.sum[half], rescale[half], sum[half] + odd_sum[half]);
  }
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

// After reduce_row_sums(). P of a row that sees no key is 0, but 0 times a NaN of V is not [5]. The vote only skips
// rows that stay as they are.
template <int kRegisters>
TANDEM_DEVICE void clear_empty_rows(float (&acc_o)[kRegisters], const SoftmaxRows& rows) {
  if (!ptx::any_sync(rows.sum[0] == 0.0f || rows.sum[1] == 0.0f)) return;
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    if (rows.sum[half_of(i)] == 0.0f) acc_o[i] = 0.0f;
  }
}

// After reduce_row_sums(). 1 / sum, and 0 for a row that sees no key [5].
TANDEM_DEVICE float normalizer(const SoftmaxRows& rows, int half) {
  return rows.sum[half] == 0.0f ? 0.0f : ptx::rcp(rows.sum[half]);
}

// After reduce_row_sums(). Natural log; -inf for a row that sees no key.
TANDEM_DEVICE float log_sum_exp(const SoftmaxRows& rows, int half) {
  constexpr float kLn2 = 0.693147180559945309f;
  return (rows.reference[half] + ptx::lg2(rows.sum[half])) * kLn2;
}

}  // namespace tandem::sm90
