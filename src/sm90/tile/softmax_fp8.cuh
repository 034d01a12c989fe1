#pragma once

#include <cmath>
#include <cstdint>

#include "core/int_math.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/softmax.cuh"

// The softmax of softmax.cuh where P becomes e4m3, which reaches from 2^-9 to 448. docs/ALGORITHM.md, "In e4m3".
//
// Exponents are scale * score - reference, where the scale may change from block to block (fp8 factors): so the
// reference is an exponent here, not a score. The largest P of a row is 2^5 when it gets a reference, and never beyond
// 448, but by what fp32 rounds off exponents beyond 2^22: a reference follows as soon as it would be, row by row [12].
// A reference that turns out to be much higher than most of its row falls again, before small P vanish that matter.
// Sums are of P as it was before it is rounded.
namespace tandem::sm90 {

// Of the largest P, when its row gets a reference: the less, the seldomer a reference must rise, and the less of e4m3
// is left for small P. A row that sees few keys of its first block will often see a larger score in the next, so it
// gets less: exponent_for(). PERF: docs/TUNING.md.
constexpr float kTopExponent = 5.0f;
constexpr float kMaxExponent = 8.8f;  // just under that of 448
constexpr float kLargestP8 = 448.0f;
constexpr uint32_t kP8Limit = 0x7e7e7e7e;  // four times 448, in e4m3; P that is larger becomes 448 too, NaN 0x7f
// Up to this a row's P are brought down by a power of two. Above, their sum may have overflowed.
constexpr float kLargestScaledP8 = 0x1p120f;

// A row whose P add up to less has its weight in a few of them, if it has seen more than a block of keys.
constexpr float kPeakedSum = 0x1p7f;

// How P of a thread's two rows is made: 2^(scale score - offset).
struct Fp8Exponents {
  float scale[2];
  float offset[2];
};

// What a row's reference becomes when its largest exponent is `top`, which is to be P's exponent `to`. HAZARD: as a
// difference, which is exact where it counts; before + kMaxExponent is rounded, from 2^27 on to before + 16.
// (top - to then to a multiple of 8.)
TANDEM_DEVICE float follow_top(float before, float top, float to = kTopExponent) {
  return top - before > kMaxExponent ? top - to : before;
}

// Of positive, normal numbers.
TANDEM_DEVICE float exponent_of(float value) {
  return static_cast<float>(static_cast<int>(ptx::float_to_bits(value) >> 23) - 127);
}

// By how many powers of two the reference of a row may fall, if its P add up to `sum`: each of them to at most 2^8.
TANDEM_DEVICE float fall_of(float sum) {
  return sum > 0.0f && sum < kPeakedSum ? 7.0f - exponent_of(sum) : 0.0f;
}

// Of the largest P of a row that sees `keys` keys of its first block: 2 for one key, 5 from 64 on. What is so little of
// the largest that it vanishes is less than 1 % of that, all keys together.
TANDEM_DEVICE float exponent_for(int keys) {
  return 2.0f + std::floor(exponent_of(static_cast<float>(min_of(max_of(keys, 1), 64))) / 2.0f);
}

// A row that has seen no key, or none but with scores of -inf, keeps the reference -inf; an offset of 0 then makes
// every P exactly 0, not NaN.
TANDEM_DEVICE float offset_for(float reference) {
  return reference == -INFINITY ? 0.0f : reference;
}

// The references of an exact block, whose hidden scores are -inf; scale >= 0. rescale: what sums and O so far are to be
// multiplied by. Scores of rows whose reference is huge come out as exponents. to: of the largest P of first
// references. kFirst: of a row, whose sum is not there yet.
template <bool kFirst, int kRegisters>
TANDEM_DEVICE Fp8Exponents follow_maxima_fp8(SoftmaxRows& rows, float (&acc_s)[kRegisters], float scale,
                                             const float (&to)[2], float (&rescale)[2]) {
  float maximum[2];
  row_maxima(maximum, acc_s);
  Fp8Exponents exponents{{scale, scale}, {}};
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float before = rows.reference[half];
    const float top = ptx::mul(maximum[half], scale);
    const float new_top = kFirst || before == -INFINITY ? to[half] : kTopExponent;
    rows.reference[half] = follow_top(before, top, new_top);
    if constexpr (!kFirst) {
      const float fall = fall_of(quad_sum(rows.sum[half]));
      const float room = std::floor(new_top - (top - before));
      if (room > 0.0f && !is_huge(before)) rows.reference[half] -= ptx::min(fall, room);
    }
    exponents.offset[half] = offset_for(rows.reference[half]);
    rescale[half] = ptx::ex2(before - exponents.offset[half]);
  }
  if (TANDEM_UNLIKELY(ptx::any_sync(is_huge(exponents.offset[0]) || is_huge(exponents.offset[1])))) {
    TANDEM_UNROLL
    for (int i = 0; i < kRegisters; ++i) {
      const int half = half_of(i);
      if (is_huge(exponents.offset[half])) acc_s[i] = ptx::mul(acc_s[i], scale) - exponents.offset[half];
    }
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (!is_huge(exponents.offset[half])) continue;
      exponents.scale[half] = 1.0f;
      exponents.offset[half] = 0.0f;
    }
  }
  return exponents;
}

// The A fragment of k-step `step`: four adjacent slots of V^T's rows for each thread, which hold the keys of its
// columns (core/fp8.h).
template <int kRegisters>
TANDEM_DEVICE void pack_p8(uint32_t (&fragment)[4], const float (&p)[kRegisters], int step) {
  TANDEM_UNROLL
  for (int r = 0; r < 4; ++r) {
    const int i = 16 * step + 8 * (r / 2) + 2 * (r % 2);
    fragment[r] = ptx::pack_e4m3x4(p[i], p[i + 1], p[i + 4], p[i + 5]);
  }
}

// Some P of a fragment is 448 or larger, or NaN: collected in the top bit of each byte.
TANDEM_DEVICE void collect_limits(uint32_t& limits, const uint32_t (&fragment)[4]) {
  constexpr uint32_t kToTopBit = 0x80808080u - kP8Limit;
  limits |= (fragment[0] + kToTopBit) | (fragment[1] + kToTopBit);
  limits |= (fragment[2] + kToTopBit) | (fragment[3] + kToTopBit);
}
TANDEM_DEVICE bool has_reached_limit(uint32_t limits) {
  return (limits & 0x80808080u) != 0;
}

// S to P in place, and rounded into `fragments`; sum: this thread's part of the rows'. The exponentials of the first
// kPackLag groups of 32 columns run under a matrix product that reads `fragments`; then finish_product() waits for it.
// Returns the limits that P has reached.
template <int kPackLag, int kRegisters, typename FinishProduct>
TANDEM_DEVICE uint32_t exponentials_fp8(float (&acc_s)[kRegisters], uint32_t (&fragments)[kRegisters / 16][4],
                                        const Fp8Exponents& exponents, float (&sum)[2],
                                        const FinishProduct& finish_product) {
  constexpr int kGroups = kRegisters / 16;
  static_assert(0 < kPackLag && kPackLag <= kGroups);
  float even[2], odd[2];
  uint32_t limits = 0;
  TANDEM_UNROLL
  for (int group = 0; group < kGroups + kPackLag; ++group) {
    if (group < kGroups) {
      TANDEM_UNROLL
      for (int i = 16 * group; i < 16 * group + 16; i += 2) {
        const int half = half_of(i);
        acc_s[i] = ptx::ex2(ptx::fma(acc_s[i], exponents.scale[half], -exponents.offset[half]));
        acc_s[i + 1] = ptx::ex2(ptx::fma(acc_s[i + 1], exponents.scale[half], -exponents.offset[half]));
        even[half] = i < 4 ? acc_s[i] : even[half] + acc_s[i];
        odd[half] = i < 4 ? acc_s[i + 1] : odd[half] + acc_s[i + 1];
      }
    }
    if (group == kPackLag - 1) finish_product();
    if (group >= kPackLag) {
      pack_p8(fragments[group - kPackLag], acc_s, group - kPackLag);
      collect_limits(limits, fragments[group - kPackLag]);
    }
  }
  sum[0] = even[0] + odd[0];
  sum[1] = even[1] + odd[1];
  return limits;
}

// By how many powers of two a reference must rise that the row's largest P, finite and beyond 448, lies from
// 2^kTopExponent to twice that.
TANDEM_DEVICE float excess_of(float largest) {
  return exponent_of(largest) - kTopExponent;
}

}  // namespace tandem::sm90
