#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"

// 8x8 matrices of 16-bit elements between shared memory and fragments. All 32 threads of a warp call together.
// `address` is per lane: lanes 8i to 8i+7 give the rows of matrix i, each 16 bytes and 16-byte aligned. In the
// fragment, register i of lane t holds elements 2(t%4) and 2(t%4)+1 of row t/4 of matrix i (transposed: of column t/4).
// PTX: Warp Level Matrix Instructions: ldmatrix (6.5), stmatrix (7.8).
namespace tandem::sm90::ptx {

// Ordinary accesses: no fence to other ordinary accesses of this thread; barriers towards other threads as for loads.
TANDEM_DEVICE void ldmatrix_x4(uint32_t (&registers)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}
TANDEM_DEVICE void ldmatrix_x4_transposed(uint32_t (&registers)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

// Ordinary writes: fence_proxy_async_shared() before TMA or wgmma reads them.
TANDEM_DEVICE void stmatrix_x4(uint32_t address, const uint32_t (&registers)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(registers[0]),
               "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
}
TANDEM_DEVICE void stmatrix_x4_transposed(uint32_t address, const uint32_t (&registers)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(registers[0]), "r"(registers[1]), "r"(registers[2]), "r"(registers[3])
               : "memory");
}

}  // namespace tandem::sm90::ptx
