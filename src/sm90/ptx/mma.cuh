#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"

// The matrix product of one warp, synchronous and in registers. All 32 threads call together; operands are ordinary
// registers, no fence is needed. PTX: Warp Level Matrix Instructions: mma.sync (7.0).
namespace tandem::sm90::ptx {

// mma.sync.m16n8k16: D += A B with A (16, 16), B (16, 8), D (16, 8) in fp32. Lane t holds
//   a[0..3]: A[t/4][2(t%4)..], A[t/4+8][2(t%4)..], A[t/4][2(t%4)+8..], A[t/4+8][2(t%4)+8..], two elements each
//            (ldmatrix_x4 of rows 0-7, 8-15, and the same with the columns from 8);
//   b0, b1:  B[2(t%4)..][t/4], B[2(t%4)+8..][t/4], two elements each (ldmatrix of B^T's rows);
//   d[0..3]: D[t/4][2(t%4)], D[t/4][2(t%4)+1], D[t/4+8][2(t%4)], D[t/4+8][2(t%4)+1].
template <typename Element>
TANDEM_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
TANDEM_DEVICE void mma_m16n8k16<Bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
TANDEM_DEVICE void mma_m16n8k16<Fp16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tandem::sm90::ptx
