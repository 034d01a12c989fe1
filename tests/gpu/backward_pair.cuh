#pragma once

#include <cmath>
#include <cstdint>

#include "device_view.h"
#include "oracle_math.cuh"
#include "plain_references.h"

// One row and one key of the backward's oracle, exactly and as plain attention has them.
namespace tandem::gpu_test {

// Attention exactly, and plain attention by what it rounds. From kOutAndGradients on: P, O and dS, with the forward's P
// relative to each of its row's references, and the backward's from an LSE right to the last place; dS is made of P as
// it was before it was rounded.
enum Rounded : int { kNothing, kScores, kProbabilities, kOut, kAll, kOutAndGradients };
constexpr int kVariants = kOutAndGradients + optest::kPlainReferences;

// A sequence and a key head: its gradients depend on nothing else. Rows are those of the group's heads, one head after
// the other; first_row and first_key count those of the units before.
struct Unit {
  int64_t sequence, head_k, first_row, first_key;
};

struct Units {
  const Unit* list;
  int64_t count;
  int64_t rows, keys;  // of all
};

// What a row needs of its whole softmax.
struct RowStats {
  double lse, lse_of_rounded, lse_stored;
  double lse_near[optest::kPlainReferences];  // in fp32
  double delta[kVariants];
  double size;  // of the terms of delta
};

// dS is P (dP - delta). Where the two cancel, as for a row that sees one key, what is left is fp32's rounding of both
// sums, whatever the order: in the largest error that plain attention could make, this much of their terms.
constexpr double kCancellation = 0x1p-21;

__device__ inline int64_t unit_of(const Units& units, int64_t n, bool of_keys) {
  int64_t low = 0, high = units.count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    ((of_keys ? units.list[middle].first_key : units.list[middle].first_row) <= n ? low : high) = middle;
  }
  return low;
}

struct HeadRow {
  int64_t head, row;
};

__device__ inline HeadRow head_row(const DeviceView& view, const Unit& unit, int64_t local) {
  const int64_t q_len = view.sequences[unit.sequence].q_len;
  return {unit.head_k * (view.nheads_q / view.nheads_k) + local / q_len, local % q_len};
}

__device__ inline const uint16_t* q_row(const DeviceView& view, int64_t sequence, const HeadRow& at) {
  return static_cast<const uint16_t*>(view.q) +
         view.q_at.at(view.packed ? 0 : sequence, view.sequences[sequence].q_begin + at.row, at.head);
}
__device__ inline const uint16_t* dout_row(const DeviceView& view, int64_t sequence, const HeadRow& at) {
  return view.dout + view.out_at.at(view.packed ? 0 : sequence, view.sequences[sequence].q_begin + at.row, at.head);
}
__device__ inline const uint16_t* k_row(const DeviceView& view, const Unit& unit, int64_t key) {
  const int64_t entry = view.packed ? 0 : unit.sequence;
  return static_cast<const uint16_t*>(view.k) +
         view.k_at.at(entry, view.sequences[unit.sequence].k_begin + key, unit.head_k);
}
__device__ inline const uint16_t* v_row(const DeviceView& view, const Unit& unit, int64_t key) {
  const int64_t entry = view.packed ? 0 : unit.sequence;
  return static_cast<const uint16_t*>(view.v) +
         view.v_at.at(entry, view.sequences[unit.sequence].k_begin + key, unit.head_k);
}

// A product of two 16-bit numbers is exact in fp32.
__device__ inline double product_sum(const uint16_t* a, const uint16_t* b, int64_t length, int32_t dtype) {
  double sum = 0;
  for (int64_t c = 0; c < length; c += 8) {
    const EightElements x = *reinterpret_cast<const EightElements*>(a + c);
    const EightElements y = *reinterpret_cast<const EightElements*>(b + c);
    for (int n = 0; n < 8; ++n) {
      sum += static_cast<double>(from_16bit(dtype, x.bits[n]) * from_16bit(dtype, y.bits[n]));
    }
  }
  return sum;
}

// Of one row and key: S and S rounded, capped; P and dS of each variant.
struct Pair {
  double p[kVariants], ds[kVariants];
};

__device__ inline Pair pair_of(const DeviceView& view, const RowStats& stats, double product, double dp) {
  const double score = view.scale * product;
  const double s = capped(score, view.softcap);
  const double s_rounded = capped(round_to_16bit(view.dtype, score), view.softcap);
  Pair pair;
  pair.p[kNothing] = pair.p[kOut] = exp(s - stats.lse);
  pair.p[kScores] = exp(s_rounded - stats.lse_of_rounded);
  pair.p[kProbabilities] = round_to_16bit(view.dtype, pair.p[kNothing]);
  pair.p[kAll] = round_to_16bit(view.dtype, exp(s_rounded - stats.lse_stored));
  double p_of_ds[kVariants];
  for (int n = 0; n < kOutAndGradients; ++n) p_of_ds[n] = pair.p[n];
  for (int n = 0; n < optest::kPlainReferences; ++n) {
    const int variant = kOutAndGradients + n;
    p_of_ds[variant] = exp(s - stats.lse_near[n]);
    pair.p[variant] = round_to_16bit(view.dtype, p_of_ds[variant]);
  }
  for (int n = 0; n < kVariants; ++n) {
    const double ratio = view.softcap > 0 ? (n == kScores || n == kAll ? s_rounded : s) / view.softcap : 0;
    const double ds = p_of_ds[n] * (dp - stats.delta[n]) * (1 - ratio * ratio);
    pair.ds[n] = view.scale * (n < kOutAndGradients ? ds : round_to_16bit(view.dtype, ds));
  }
  return pair;
}

}  // namespace tandem::gpu_test
