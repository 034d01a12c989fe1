// Rows of elements between their storage types and the compute type (fp64 for fp64, fp32 for all others).
//
// fp16 is converted with integer arithmetic on every target: exact, with subnormals, infinities and NaN, and without
// the slow path that some processors take for arithmetic on subnormals.

#if defined(TANDEM_CPU_SIMD_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_CONVERT_INL_H_
#undef TANDEM_CPU_SIMD_CONVERT_INL_H_
#else
#define TANDEM_CPU_SIMD_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "cpu/simd/gemm-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class DF, class VU = hn::Vec<hn::RebindToUnsigned<DF>>>
HWY_INLINE hn::Vec<DF> widen(DF df, VU bits, Bf16) {
  return hn::BitCast(df, hn::ShiftLeft<16>(bits));
}

// Moving exponent and mantissa 13 bits up leaves the exponent 112 too low. Subnormals get it by a subtraction that
// normalizes; infinity and NaN get another 112, which makes their exponent 255.
template <class DF, class VU = hn::Vec<hn::RebindToUnsigned<DF>>>
HWY_INLINE hn::Vec<DF> widen(DF df, VU bits, Fp16) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bias = hn::Set(du, 112u << 23);
  const VU sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const VU magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
  const auto is_special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x0F7FFFFF));
  const auto is_subnormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 1 << 23));
  const VU normal = hn::Add(magnitude, bias);
  const VU special = hn::Add(normal, bias);
  const auto smallest = hn::Set(df, 6.103515625e-05f);  // 2^-14
  const auto subnormal = hn::Sub(hn::BitCast(df, hn::Add(normal, hn::Set(du, 1u << 23))), smallest);
  auto value = hn::IfThenElse(hn::RebindMask(df, is_special), hn::BitCast(df, special), hn::BitCast(df, normal));
  value = hn::IfThenElse(hn::RebindMask(df, is_subnormal), subnormal, value);
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
}

// The low 16 bits of each lane: x rounded to nearest even, overflow to infinity, NaN kept (quiet).
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> narrow(DF, V x, Bf16) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  return hn::IfThenElse(is_nan, quiet, rounded);
}

template <class DF, class V = hn::Vec<DF>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> narrow(DF df, V x, Fp16) {
  const hn::RebindToUnsigned<DF> du;
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du, x)), hn::Set(du, 0x8000u));
  const V magnitude = hn::Abs(x);
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
  const auto rebiased = hn::Sub(bits, hn::Set(du, 112u << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(odd, hn::Set(du, 0xFFFu))));
  // Adding 1/2 aligns the mantissa so that its last bit is worth 2^-24, the smallest subnormal; the adder rounds.
  const V half = hn::Set(df, 0.5f);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, half)), hn::BitCast(du, half));
  const auto is_subnormal = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(df, 6.103515625e-05f)));  // 2^-14
  const auto overflows = hn::RebindMask(du, hn::Ge(magnitude, hn::Set(df, 65520.0f)));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  auto result = hn::IfThenElse(is_subnormal, subnormal, normal);
  result = hn::IfThenElse(overflows, hn::Set(du, 0x7C00u), result);
  result = hn::IfThenElse(is_nan, hn::Set(du, 0x7E00u), result);
  return hn::Or(result, sign);
}

// The low 8 bits of each lane: x rounded to nearest even; beyond the range, and NaN: NaN.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> narrow(DF df, V x, E4m3) {
  const hn::RebindToUnsigned<DF> du;
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80u));
  const V magnitude = hn::Abs(x);
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto rebiased = hn::Sub(bits, hn::Set(du, 120u << 23));
  const auto normal = hn::ShiftRight<20>(hn::Add(rebiased, hn::Add(odd, hn::Set(du, 0x7FFFFu))));
  // Adding 2^14 aligns the mantissa so that its last bit is worth 2^-9, the smallest subnormal; the adder rounds.
  const V magic = hn::Set(df, 16384.0f);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, magic)), hn::BitCast(du, magic));
  const auto is_subnormal = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(df, 0.015625f)));  // 2^-6
  const auto is_in_range = hn::RebindMask(du, hn::Le(magnitude, hn::Set(df, 464.0f)));      // halfway past 448; not NaN
  auto result = hn::IfThenElse(is_subnormal, subnormal, normal);
  result = hn::IfThenElse(is_in_range, result, hn::Set(du, 0x7Fu));
  return hn::Or(result, sign);
}

// 4 exponent and 3 mantissa bits moved to where fp32 has its last exponent and first mantissa bits leave the exponent
// 120 too low. Subnormals get it by a subtraction that normalizes; the pattern of all ones is NaN.
template <class DF, class VU = hn::Vec<hn::RebindToUnsigned<DF>>>
HWY_INLINE hn::Vec<DF> widen(DF df, VU bits, E4m3) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const VU sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
  const VU magnitude = hn::ShiftLeft<20>(hn::And(bits, hn::Set(du, 0x7Fu)));
  const VU normal = hn::Add(magnitude, hn::Set(du, 120u << 23));
  const auto is_nan = hn::Eq(hn::BitCast(di, magnitude), hn::Set(di, 0x7F << 20));
  const auto is_subnormal = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 1 << 23));
  const auto smallest = hn::Set(df, 0.015625f);  // 2^-6
  const auto subnormal = hn::Sub(hn::BitCast(df, hn::Add(normal, hn::Set(du, 1u << 23))), smallest);
  auto value = hn::IfThenElse(hn::RebindMask(df, is_subnormal), subnormal, hn::BitCast(df, normal));
  value = hn::IfThenElse(hn::RebindMask(df, is_nan), hn::BitCast(df, hn::Set(du, 0x7FC00000u)), value);
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
}

template <typename Half>
HWY_NOINLINE void load_half_row(const void* src, size_t count, float* dst) {
  const Lanes<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<uint16_t, decltype(df)> du16;
  const size_t lanes = hn::Lanes(df);
  const auto* bits = static_cast<const uint16_t*>(src);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(widen(df, hn::PromoteTo(du, hn::LoadU(du16, bits + i)), Half{}), df, dst + i);
  }
  const hn::CappedTag<float, 1> df1;
  const hn::RebindToUnsigned<decltype(df1)> du1;
  for (; i < count; ++i) hn::StoreU(widen(df1, hn::Set(du1, bits[i]), Half{}), df1, dst + i);
}

template <typename Half>
HWY_NOINLINE void store_half_row(const float* src, size_t count, void* dst) {
  const Lanes<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint16_t, decltype(df)> du16;
  const size_t lanes = hn::Lanes(df);
  auto* bits = static_cast<uint16_t*>(dst);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto narrowed = narrow(df, hn::LoadU(df, src + i), Half{});
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, narrowed)), du16, bits + i);
  }
  const hn::CappedTag<float, 1> df1;
  for (; i < count; ++i) bits[i] = static_cast<uint16_t>(hn::GetLane(narrow(df1, hn::Set(df1, src[i]), Half{})));
}

HWY_INLINE void load_e4m3_row(const void* src, size_t count, float* dst) {
  const Lanes<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<uint8_t, decltype(df)> du8;
  const size_t lanes = hn::Lanes(df);
  const auto* bits = static_cast<const uint8_t*>(src);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(widen(df, hn::PromoteTo(du, hn::LoadU(du8, bits + i)), E4m3{}), df, dst + i);
  }
  const hn::CappedTag<float, 1> df1;
  const hn::RebindToUnsigned<decltype(df1)> du1;
  for (; i < count; ++i) hn::StoreU(widen(df1, hn::Set(du1, bits[i]), E4m3{}), df1, dst + i);
}

HWY_INLINE void store_e4m3_row(const float* src, size_t count, void* dst) {
  const Lanes<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint8_t, decltype(df)> du8;
  const size_t lanes = hn::Lanes(df);
  auto* bits = static_cast<uint8_t*>(dst);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto narrowed = narrow(df, hn::LoadU(df, src + i), E4m3{});
    hn::StoreU(hn::DemoteTo(du8, hn::BitCast(di, narrowed)), du8, bits + i);
  }
  const hn::CappedTag<float, 1> df1;
  for (; i < count; ++i) bits[i] = static_cast<uint8_t>(hn::GetLane(narrow(df1, hn::Set(df1, src[i]), E4m3{})));
}

// memcpy for rows too short to pay for its call.
template <typename T>
HWY_INLINE void copy_row(const T* src, size_t count, T* dst) {
  const Lanes<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::LoadU(d, src + i), d, dst + i);
  for (; i < count; ++i) dst[i] = src[i];
}

// Reads `count` adjacent elements of `dtype`, the first at element `offset`.
HWY_INLINE void load_row(const void* data, DType, int64_t offset, size_t count, double* dst) {
  copy_row(static_cast<const double*>(data) + offset, count, dst);
}
HWY_INLINE void load_row(const void* data, DType dtype, int64_t offset, size_t count, float* dst) {
  const char* src = static_cast<const char*>(data) + offset * dtype_bytes(dtype);
  switch (dtype) {
    case DType::kFp16: return load_half_row<Fp16>(src, count, dst);
    case DType::kBf16: return load_half_row<Bf16>(src, count, dst);
    case DType::kE4m3: return load_e4m3_row(src, count, dst);
    default: return copy_row(reinterpret_cast<const float*>(src), count, dst);
  }
}

HWY_INLINE void store_row(const double* src, size_t count, void* data, DType, int64_t offset) {
  copy_row(src, count, static_cast<double*>(data) + offset);
}
HWY_INLINE void store_row(const float* src, size_t count, void* data, DType dtype, int64_t offset) {
  char* dst = static_cast<char*>(data) + offset * dtype_bytes(dtype);
  switch (dtype) {
    case DType::kFp16: return store_half_row<Fp16>(src, count, dst);
    case DType::kBf16: return store_half_row<Bf16>(src, count, dst);
    case DType::kE4m3: return store_e4m3_row(src, count, dst);
    default: return copy_row(src, count, reinterpret_cast<float*>(dst));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
