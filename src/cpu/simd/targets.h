#pragma once

// Which Highway targets the CPU backend is compiled for. Comes before every Highway header.
//
// One per generation of registers (SSE4, AVX2, AVX-512, NEON) and the baseline: later AVX-512 targets add nothing that
// products in fp32 use, and every target costs compile time. Vectors of SVE and RVV have no compile-time size, so they
// cannot form arrays of accumulators. Bits 0 to 6 are AVX-512 targets that Highway 1.0.3 has no names for.
#if defined(HWY_DETECT_TARGETS_H_) || defined(HIGHWAY_HWY_DETECT_TARGETS_H_)
#error "cpu/simd/targets.h must come before Highway's headers"
#endif

#define HWY_DISABLED_TARGETS \
  (0x7FLL | HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
