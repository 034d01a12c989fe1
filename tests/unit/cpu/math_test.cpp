#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/cpu/math_test.cpp"
#include "hwy/foreach_target.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/simd/gemm-inl.h"
#include "cpu/simd/math-inl.h"
#include "tests/unit/cpu/each_target.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {

template <typename T>
T exp2_of(T x) {
  const Lanes<T> d;
  return hn::GetLane(exp2(d, hn::Set(d, x)));
}

template <typename T>
T tanh_of(T x) {
  const Lanes<T> d;
  return hn::GetLane(tanh(d, hn::Set(d, x)));
}

// |value - exact| in units of the last place of T at `exact`.
template <typename T>
double ulps(T value, long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const long double ulp = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
  return static_cast<double>(std::abs(static_cast<long double>(value) - exact) / ulp);
}

template <typename T>
void check_exp2_accuracy() {
  const T lowest = std::numeric_limits<T>::min_exponent - T(0.5);  // results are normal numbers from here on
  double worst = 0;
  for (int i = 0; i <= 200000; ++i) {
    const T x = lowest + (T(4) - lowest) * static_cast<T>(i) / 200000;
    worst = std::max(worst, ulps(exp2_of(x), std::exp2(static_cast<long double>(x))));
  }
  for (int i = -20000; i <= 20000; ++i) {  // densely round 0, where the largest probabilities are
    const T x = static_cast<T>(i) / 20000;
    worst = std::max(worst, ulps(exp2_of(x), std::exp2(static_cast<long double>(x))));
  }
  EXPECT_LT(worst, 2);
}

template <typename T>
void check_exp2_special_values() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(exp2_of(T(0)), T(1));
  EXPECT_EQ(exp2_of(T(-0.0)), T(1));
  EXPECT_EQ(exp2_of(T(3)), T(8));
  EXPECT_EQ(exp2_of(T(-20)), T(1) / 1048576);
  EXPECT_EQ(exp2_of(-kInfinity), T(0));
  EXPECT_EQ(exp2_of(T(-1e30)), T(0));
  EXPECT_EQ(exp2_of(std::numeric_limits<T>::lowest()), T(0));
  EXPECT_TRUE(std::isnan(exp2_of(std::numeric_limits<T>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(exp2_of(-std::numeric_limits<T>::quiet_NaN())));
}

// NaN with every bit of its payload set, as 0xFF bytes give it.
void check_exp2_full_payload_nan() {
  float nan32;
  double nan64;
  std::memset(&nan32, 0xFF, sizeof nan32);
  std::memset(&nan64, 0xFF, sizeof nan64);
  EXPECT_TRUE(std::isnan(exp2_of(nan32)));
  EXPECT_TRUE(std::isnan(exp2_of(nan64)));
  EXPECT_TRUE(std::isnan(tanh_of(nan32)));
  EXPECT_TRUE(std::isnan(tanh_of(nan64)));
}

template <typename T>
void check_tanh_accuracy() {
  double worst = 0;
  for (int i = -100000; i <= 100000; ++i) {
    const T x = static_cast<T>(i) / 4000;  // to +-25
    worst = std::max(worst, ulps(tanh_of(x), std::tanh(static_cast<long double>(x))));
  }
  for (T x = T(1); x > std::numeric_limits<T>::min() * 4; x *= T(0.7)) {
    worst = std::max(worst, ulps(tanh_of(x), std::tanh(static_cast<long double>(x))));
    worst = std::max(worst, ulps(tanh_of(-x), std::tanh(static_cast<long double>(-x))));
  }
  EXPECT_LT(worst, 8);
}

template <typename T>
void check_tanh_special_values() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(tanh_of(T(0)), T(0));
  EXPECT_TRUE(std::signbit(tanh_of(T(-0.0))));
  EXPECT_EQ(tanh_of(kInfinity), T(1));
  EXPECT_EQ(tanh_of(-kInfinity), T(-1));
  EXPECT_EQ(tanh_of(std::numeric_limits<T>::max()), T(1));
}

void check_exp2() {
  check_exp2_accuracy<float>();
  check_exp2_accuracy<double>();
  check_exp2_special_values<float>();
  check_exp2_special_values<double>();
  check_exp2_full_payload_nan();
}

void check_tanh() {
  check_tanh_accuracy<float>();
  check_tanh_accuracy<double>();
  check_tanh_special_values<float>();
  check_tanh_special_values<double>();
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tandem {
namespace {

HWY_EXPORT(check_exp2);
HWY_EXPORT(check_tanh);

TEST(SimdMath, Exp2) {
  for_each_target([] { HWY_DYNAMIC_DISPATCH(check_exp2)(); });
}

TEST(SimdMath, Tanh) {
  for_each_target([] { HWY_DYNAMIC_DISPATCH(check_tanh)(); });
}

}  // namespace
}  // namespace tandem

#endif  // HWY_ONCE
