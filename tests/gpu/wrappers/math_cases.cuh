#pragma once

#include <cmath>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/math.cuh"
#include "wrappers/case.h"

// Arithmetic, one value a thread. Tolerances of the approximate ones are those that the PTX ISA states.
namespace tandem::sm90::wrappers {

constexpr int kMathValues = 512;

inline float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
inline float rounded_and_flushed(double x) {
  return flushed(static_cast<float>(x));
}

template <typename Function>
struct UnaryCase : CaseDefaults {
  static constexpr const char* kName = Function::kName;
  static constexpr int kThreads = kMathValues;
  static constexpr int kInWords = kMathValues;
  static constexpr int kOutWords = kMathValues;
  static constexpr Kind kKind = Kind::kFloats;
  static constexpr double kRelative = Function::kRelative;
  static constexpr double kAbsolute = Function::kAbsolute;
  static void input(Random& random, Words& in) { random_floats(random, in, Function::kLow, Function::kHigh, true); }
  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::thread_rank();
    const float x = ptx::bits_to_float(ptx::load_global(params.in + t));
    ptx::store_global(params.out + t, ptx::float_to_bits(Function::apply(x)));
  }
  static void expect(const Words& in, Words& out) {
    for (int t = 0; t < kMathValues; ++t) out[t] = bits_of(Function::define(flushed(float_of(in[t]))));
  }
};

struct Ex2Function {
  static constexpr const char* kName = "ex2";
  static constexpr int kLow = 20, kHigh = 8;
  static constexpr double kRelative = 0x1p-22, kAbsolute = 0x1p-126;
  TANDEM_DEVICE static float apply(float x) { return ptx::ex2(x); }
  static float define(float x) { return rounded_and_flushed(std::exp2(static_cast<double>(x))); }
};
struct Lg2Function {
  static constexpr const char* kName = "lg2";
  static constexpr int kLow = 20, kHigh = 20;
  static constexpr double kRelative = 0x1p-22, kAbsolute = 0x1p-22;
  TANDEM_DEVICE static float apply(float x) { return ptx::lg2(x); }
  static float define(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }
};
struct RcpFunction {
  static constexpr const char* kName = "rcp";
  static constexpr int kLow = 100, kHigh = 100;
  static constexpr double kRelative = 0x1p-23, kAbsolute = 0x1p-126;
  TANDEM_DEVICE static float apply(float x) { return ptx::rcp(x); }
  static float define(float x) { return rounded_and_flushed(1.0 / static_cast<double>(x)); }
};
struct TanhFunction {
  static constexpr const char* kName = "tanh_approx";
  static constexpr int kLow = 10, kHigh = 5;
  static constexpr double kRelative = 0x1p-10, kAbsolute = 0x1p-126;
  TANDEM_DEVICE static float apply(float x) { return ptx::tanh_approx(x); }
  static float define(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }
};

// fma, mul, add, max, min of the triples: exact, so bit for bit.
struct ExactArithmetic : CaseDefaults {
  static constexpr const char* kName = "exact_arithmetic";
  static constexpr int kThreads = kMathValues;
  static constexpr int kInWords = 3 * kMathValues;
  static constexpr int kOutWords = 5 * kMathValues;
  static constexpr Kind kKind = Kind::kFloats;
  static void input(Random& random, Words& in) { random_floats(random, in, 70, 60, true); }

  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::thread_rank();
    const float a = ptx::bits_to_float(ptx::load_global(params.in + t));
    const float b = ptx::bits_to_float(ptx::load_global(params.in + kMathValues + t));
    const float c = ptx::bits_to_float(ptx::load_global(params.in + 2 * kMathValues + t));
    const float results[5] = {ptx::fma(a, b, c), ptx::mul(a, b), ptx::add(a, b), ptx::max(a, b), ptx::min(a, b)};
    for (int i = 0; i < 5; ++i) ptx::store_global(params.out + i * kMathValues + t, ptx::float_to_bits(results[i]));
  }
  // Of +0 and -0, +0 is the larger; of a number and a NaN, the number counts.
  static float larger(float a, float b) {
    if (a == 0 && b == 0) return std::signbit(a) ? b : a;
    return std::fmax(a, b);
  }
  static void expect(const Words& in, Words& out) {
    for (int t = 0; t < kMathValues; ++t) {
      const float a = flushed(float_of(in[t]));
      const float b = flushed(float_of(in[kMathValues + t]));
      const float c = flushed(float_of(in[2 * kMathValues + t]));
      const float results[5] = {std::fma(a, b, c), a * b, a + b, larger(a, b), -larger(-a, -b)};
      for (int i = 0; i < 5; ++i) out[i * kMathValues + t] = bits_of(flushed(results[i]));
    }
  }
};

// Roundings of the narrow types; core's conversions are the definition, but for e4m3's saturation.
struct Packing : CaseDefaults {
  static constexpr const char* kName = "packing";
  static constexpr int kThreads = kMathValues / 4;
  static constexpr int kInWords = kMathValues;
  static constexpr int kOutWords = 3 * kMathValues / 4;
  static void input(Random& random, Words& in) {
    random_floats(random, in, 18, 17, true);
    for (uint32_t& word : in) {
      if (std::isnan(float_of(word))) word = 0x3f800000;  // which NaN comes out is not promised
    }
  }

  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::thread_rank();
    float x[4];
    for (int i = 0; i < 4; ++i) x[i] = ptx::bits_to_float(ptx::load_global(params.in + 4 * t + i));
    ptx::store_global(params.out + 3 * t, ptx::pack_bf16x2(x[0], x[1]));
    ptx::store_global(params.out + 3 * t + 1, ptx::pack_f16x2(x[0], x[1]));
    ptx::store_global(params.out + 3 * t + 2, ptx::pack_e4m3x4(x[0], x[1], x[2], x[3]));
  }
  static uint32_t saturated_e4m3(float x) { return to_e4m3(std::fmin(std::fmax(x, -448.0f), 448.0f)).bits; }
  static void expect(const Words& in, Words& out) {
    for (int t = 0; t < kThreads; ++t) {
      float x[4];
      for (int i = 0; i < 4; ++i) x[i] = float_of(in[4 * t + i]);
      out[3 * t] = to_bf16(x[0]).bits | static_cast<uint32_t>(to_bf16(x[1]).bits) << 16;
      out[3 * t + 1] = to_fp16(x[0]).bits | static_cast<uint32_t>(to_fp16(x[1]).bits) << 16;
      out[3 * t + 2] =
          saturated_e4m3(x[0]) | saturated_e4m3(x[1]) << 8 | saturated_e4m3(x[2]) << 16 | saturated_e4m3(x[3]) << 24;
    }
  }
};

}  // namespace tandem::sm90::wrappers
