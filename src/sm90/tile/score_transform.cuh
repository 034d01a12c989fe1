#pragma once

#include <cmath>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"

// What may happen to scores between the product and the softmax.
namespace tandem::sm90 {

template <int kRegisters>
TANDEM_DEVICE void multiply_scores(float (&acc_s)[kRegisters], float factor) {
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) acc_s[i] *= factor;
}

// tanh(x) within 1e-6 of the result's own size: by its series near 0, where 1 - 2 / (e^2x + 1) would cancel, and by
// that elsewhere. (The hardware's tanh is good to 2^-11, which a softcap of 50 makes an error of 0.02 in LSE.)
TANDEM_DEVICE float tanh_accurate(float x) {
  constexpr float k2Log2E = 2.885390081777927f;
  const float square = x * x;
  float series = ptx::fma(square, 62.0f / 2835, -17.0f / 315);
  series = ptx::fma(square, series, 2.0f / 15);
  series = ptx::fma(square, series, -1.0f / 3);
  series = ptx::fma(square * x, series, x);
  const float size = fabsf(x);
  const float rest = ptx::rcp(ptx::ex2(size * k2Log2E) + 1.0f);
  const float large = copysignf(ptx::fma(rest, -2.0f, 1.0f), x);
  return size < 0.25f ? series : large;
}

template <int kRegisters>
TANDEM_DEVICE void softcap_scores(float (&acc_s)[kRegisters], float factor) {
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) acc_s[i] = tanh_accurate(acc_s[i] * factor);
}

}  // namespace tandem::sm90
