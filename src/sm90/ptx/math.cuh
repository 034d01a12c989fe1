#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"

// Arithmetic whose rounding the kernels rely on, each one instruction unless it says otherwise. "Approximate": within
// the error that the PTX ISA states, the same bits on each run; the host model agrees to the units in the last place
// given here. PTX: Floating Point Instructions; Data Movement and Conversion Instructions: cvt.
namespace tandem::sm90::ptx {

// ex2.approx.ftz.f32: 2^x, relative error at most 2^-22; -inf gives +0, NaN stays NaN. MUFU: 16 a clock and SM.
TANDEM_DEVICE float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// lg2.approx.ftz.f32: log2(x), absolute error at most 2^-22 for x in (0.5, 2), relative outside; 0 gives -inf.
TANDEM_DEVICE float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// rcp.approx.ftz.f32: 1/x within 1 unit in the last place; subnormal x gives infinity.
TANDEM_DEVICE float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh.approx.f32 (7.0): relative error at most 2^-11.
TANDEM_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// fma.rn.ftz.f32: a * b + c, rounded once.
TANDEM_DEVICE float fma(float a, float b, float c) {
  float y;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}

// mul.rn.ftz.f32, add.rn.ftz.f32: never contracted into an fma.
TANDEM_DEVICE float mul(float a, float b) {
  float y;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
TANDEM_DEVICE float add(float a, float b) {
  float y;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// max.ftz.f32, min.ftz.f32: of a number and a NaN, the number.
TANDEM_DEVICE float max(float a, float b) {
  float y;
  asm("max.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
TANDEM_DEVICE float min(float a, float b) {
  float y;
  asm("min.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

TANDEM_DEVICE float bits_to_float(uint32_t bits) {
  return __uint_as_float(bits);
}
TANDEM_DEVICE uint32_t float_to_bits(float value) {
  return __float_as_uint(value);
}

// cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32 (7.0): both rounded to nearest even; `low` in bits 0-15.
TANDEM_DEVICE uint32_t pack_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
TANDEM_DEVICE uint32_t pack_f16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// prmt.b32 (2.0): byte i of the result is byte `selector >> 4i & 7` of the eight in low and high.
TANDEM_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
}

// cvt.f32.f16 (1.0): exact.
TANDEM_DEVICE float f16_to_float(uint16_t bits) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
  return y;
}

// Two cvt.rn.satfinite.e4m3x2.f32 (7.8) and a move: to nearest even, beyond 448 to +-448, NaN to 0x7f; x0 in bits 0-7.
TANDEM_DEVICE uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3) {
  uint32_t packed;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}\n"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}

// Two cvt.rn.f16x2.e4m3x2 (7.8): exact. The elements in bits 0-7 and 8-15, and the two after them.
TANDEM_DEVICE void unpack_e4m3x4(uint32_t& low, uint32_t& high, uint32_t packed) {
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}\n"
      : "=r"(low), "=r"(high)
      : "r"(packed));
}

}  // namespace tandem::sm90::ptx
