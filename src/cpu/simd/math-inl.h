// exp2 and tanh on vectors of float or double, branch-free.
//
// Both start from 2^x = 2^n * 2^f with n = round(x), |f| <= 1/2, and 2^f - 1 = f * q(f), where q is a minimax
// polynomial (Remez, weighted for the relative error of 2^f): 2.6e-9 for float, 1.8e-17 for double.

#if defined(TANDEM_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_MATH_INL_H_
#undef TANDEM_CPU_SIMD_MATH_INL_H_
#else
#define TANDEM_CPU_SIMD_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  static constexpr int kMantissaBits = 23;
  static constexpr float kBias = 127;
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  static constexpr float kTanhLimit = 10;       // tanh is 1 beyond
  static constexpr float kCoefficients[] = {0.69314721496797110632f,   0.2402265278288411351f,
                                            0.055503105511053535295f,  0.0096176929735597353715f,
                                            0.0013406643871014448734f, 0.00015594677893006258187f};
};

template <>
struct ExpConstants<double> {
  static constexpr int kMantissaBits = 52;
  static constexpr double kBias = 1023;
  static constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kTanhLimit = 20;
  static constexpr double kCoefficients[] = {
      0.69314718055994569671,   0.24022650695910098004,    0.055504108664790397083,    0.0096181291076070037374,
      0.0013333558153439506525, 0.00015403530441569954386, 0.000015252727385520852308, 1.3215442676609272953e-6,
      1.0180647562417255732e-7, 7.0725701698467517908e-9,  4.0780816273999343751e-10};
};

// 2^n as a vector of its own, and 2^f - 1.
template <class V>
struct SplitExp2 {
  V power;  // 0 for n = -kBias
  V exp2m1_f;
};

// For x in [-kBias, kBias + 1]; NaN gives NaN in exp2m1_f.
template <class D, class V = hn::Vec<D>>
HWY_INLINE SplitExp2<V> split_exp2(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const hn::RebindToUnsigned<D> du;
  const V rounded = hn::Add(x, hn::Set(d, C::kMagic + C::kBias));  // low bits: n + kBias
  const V f = hn::Sub(x, hn::Sub(rounded, hn::Set(d, C::kMagic + C::kBias)));
  constexpr size_t kCount = sizeof(C::kCoefficients) / sizeof(T);
  V q = hn::Set(d, C::kCoefficients[kCount - 1]);
  for (size_t i = kCount - 1; i-- > 0;) q = hn::MulAdd(q, f, hn::Set(d, C::kCoefficients[i]));
  const V power = hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::BitCast(du, rounded)));
  return {power, hn::Mul(q, f)};
}

// 2^x for x < 128 (double: 1024). Exactly 1 at 0 and 0 at -inf; results below the normal range are 0; NaN gives NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  using T = hn::TFromD<D>;
  const V lowest = hn::Set(d, -ExpConstants<T>::kBias);
  const SplitExp2<V> parts = split_exp2(d, hn::IfThenElse(hn::Lt(x, lowest), lowest, x));
  return hn::MulAdd(parts.power, parts.exp2m1_f, parts.power);
}

// tanh x = u / (u + 2) with u = e^(2 |x|) - 1: within 8 units in the last place down to the smallest arguments.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  using T = hn::TFromD<D>;
  constexpr T kTwoLog2e = T(2.885390081777926814719849362004);
  const V limit = hn::Set(d, ExpConstants<T>::kTanhLimit);
  const V magnitude = hn::Abs(x);
  const V clamped = hn::IfThenElse(hn::Gt(magnitude, limit), limit, magnitude);
  const SplitExp2<V> parts = split_exp2(d, hn::Mul(clamped, hn::Set(d, kTwoLog2e)));
  const V u = hn::MulAdd(parts.power, parts.exp2m1_f, hn::Sub(parts.power, hn::Set(d, T(1))));
  return hn::CopySign(hn::Div(u, hn::Add(u, hn::Set(d, T(2)))), x);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
