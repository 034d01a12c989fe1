#pragma once

#include <cstdint>
#include <cstring>

#include "sm90/ptx/device.cuh"

// Shared memory by address: 32-bit offsets in the shared window of this block. PTX: ld, st (1.0).
namespace tandem::sm90::ptx {

// Where a block's dynamic shared memory begins in a launch without clusters: after the kilobyte that the system keeps
// for itself on sm_90. A constant, for addresses made of it need no registers. PERF: H200, 2026-11-30, headdim 64, 16k
// keys: 1.02 against an address that is computed. HAZARD: not in a cluster. There the bits from 24 up are the block's
// rank, and this is a place in block 0: mbarrier.init of it by block 1 is an illegal instruction. Use
// dynamic_shared_base().
constexpr uint32_t kDynamicSharedBase = 1024;

// The same, of this block, in any launch.
TANDEM_DEVICE uint32_t dynamic_shared_base() {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared));
}

// Traps unless kDynamicSharedBase is this block's. One thread of each block, before the first use of the constant.
TANDEM_DEVICE void check_dynamic_shared_base() {
  if (dynamic_shared_base() != kDynamicSharedBase) trap();
}

// One access of 4, 8 or 16 bytes, aligned to its size. T: any trivially copyable type of that size.
template <typename T>
TANDEM_DEVICE T load_shared(uint32_t address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  uint32_t word[sizeof(T) / 4];
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word[0]) : "r"(address) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "r"(address) : "memory");
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(address)
                 : "memory");
  }
  T value;
  memcpy(&value, word, sizeof(T));
  return value;
}

template <typename T>
TANDEM_DEVICE void store_shared(uint32_t address, const T& value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  uint32_t word[sizeof(T) / 4];
  memcpy(word, &value, sizeof(T));
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word[0]) : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(word[0]), "r"(word[1]) : "memory");
  } else {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
  }
}

}  // namespace tandem::sm90::ptx
