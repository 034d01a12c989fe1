// What attention in e4m3 does beside attention in fp32: scales and slots on the way in, and P rounded.

#if defined(TANDEM_CPU_SIMD_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_FP8_INL_H_
#undef TANDEM_CPU_SIMD_FP8_INL_H_
#else
#define TANDEM_CPU_SIMD_FP8_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "core/fp8.h"
#include "core/problem.h"
#include "cpu/simd/tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// p in [0, 1] as e4m3 holds 2^8 p, which has 3 mantissa bits down to 2^-14 and whole multiples of 2^-17 below. The
// largest p, 1, is 256 there: what e4m3 can hold beyond (448) stays unused, so that p = 1 is exact. NaN becomes
// anything: it is in the row's sum too.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V round_probability(D d, V p) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, p);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto carried = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFFu)));
  const V normal = hn::BitCast(d, hn::And(carried, hn::Set(du, 0xFFF00000u)));
  const V magic = hn::Set(d, 96.0f);  // 1.5 * 2^6: its last bit is worth 2^-17
  const V subnormal = hn::Sub(hn::Add(p, magic), magic);
  return hn::IfThenElse(hn::Lt(p, hn::Set(d, 6.103515625e-05f)), subnormal, normal);  // 2^-14
}

// The scale of a row of a sequence; 1 if there are none.
HWY_INLINE float row_scale(const Scales& scales, int64_t sequence, int64_t head, int64_t row) {
  if (!scales.present()) return 1;
  const int64_t block = std::min(row / kScaleBlockRows, scales.blocks - 1);
  return static_cast<const float*>(
      scales.data)[sequence * scales.batch_stride + head / scales.heads_per_scale * scales.head_stride +
                   block * scales.block_stride];
}

// Rows of K or V in scratch, the first of which is key `first`; rows that no lane sees stay 0, whatever their scale
// [7].
HWY_INLINE void scale_key_rows(const Scales& scales, int64_t sequence, int64_t head, int64_t first, int64_t keys,
                               int64_t columns, const int32_t* hidden, float* rows, int64_t ld) {
  if (!scales.present()) return;
  for (int64_t j = 0; j < keys; ++j) {
    if (hidden && hidden[j]) continue;
    const float scale = row_scale(scales, sequence, head, first + j);
    for (int64_t c = 0; c < columns; ++c) rows[j * ld + c] *= scale;
  }
}

// Rows [first, first + keys) of V out of V^T in slots. `line` has room for the slots of kBlockN keys that begin
// anywhere in a group.
HWY_INLINE void load_transposed_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t sequence,
                                     int64_t head, int64_t first, int64_t keys, const int32_t* hidden, float* line,
                                     float* rows, int64_t ld) {
  const int64_t group = first / kSlotGroup * kSlotGroup;
  const int64_t slots = dense_slots(first + keys) - group;
  const int64_t sequence_begin = problem.packed ? packed_slot_begin(span.k_begin, sequence) : 0;
  const int64_t offset = sequence * problem.v.batch_stride + head * problem.v.head_stride + sequence_begin + group;
  for (int64_t c = 0; c < problem.headdim_v; ++c) {
    load_row(problem.v.data, problem.v.dtype, offset + c * problem.v.row_stride, static_cast<size_t>(slots), line);
    for (int64_t j = 0; j < keys; ++j) {
      rows[j * ld + c] = hidden && hidden[j] ? 0 : line[key_slot(first + j) - group];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
