#pragma once

#include <cstdint>
#include <cstring>

#include "sm90/ptx/device.cuh"

// Global memory by pointer. PTX: ld, st, atom, red.
namespace tandem::sm90::ptx {

// One access of 2, 4, 8 or 16 bytes (stores also of 1), aligned to its size. T: any trivially copyable type of that
// size.
template <typename T>
TANDEM_DEVICE T load_global(const T* pointer) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T value;
  if constexpr (sizeof(T) == 2) {
    uint16_t half;
    asm volatile("ld.global.b16 %0, [%1];" : "=h"(half) : "l"(pointer) : "memory");
    memcpy(&value, &half, sizeof(T));
  } else {
    uint32_t word[sizeof(T) / 4];
    if constexpr (sizeof(T) == 4) {
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(word[0]) : "l"(pointer) : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(pointer) : "memory");
    } else {
      asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                   : "l"(pointer)
                   : "memory");
    }
    memcpy(&value, word, sizeof(T));
  }
  return value;
}

template <typename T>
TANDEM_DEVICE void store_global(T* pointer, const T& value) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 1) {
    uint8_t byte;
    memcpy(&byte, &value, sizeof(T));
    asm volatile("st.global.b8 [%0], %1;" ::"l"(pointer), "r"(static_cast<uint32_t>(byte)) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    uint16_t half;
    memcpy(&half, &value, sizeof(T));
    asm volatile("st.global.b16 [%0], %1;" ::"l"(pointer), "h"(half) : "memory");
  } else {
    uint32_t word[sizeof(T) / 4];
    memcpy(word, &value, sizeof(T));
    if constexpr (sizeof(T) == 4) {
      asm volatile("st.global.b32 [%0], %1;" ::"l"(pointer), "r"(word[0]) : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(pointer), "r"(word[0]), "r"(word[1]) : "memory");
    } else {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                   "r"(word[3])
                   : "memory");
    }
  }
}

// atom.relaxed.gpu.add (6.0): the value before. Orders nothing else.
TANDEM_DEVICE uint32_t atomic_add(uint32_t* pointer, uint32_t value) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(pointer), "r"(value) : "memory");
  return before;
}

// red.relaxed.gpu.max.u32 (6.0): no value back. Orders nothing else; the result does not depend on the order.
TANDEM_DEVICE void reduce_max(uint32_t* pointer, uint32_t value) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

// red.relaxed.gpu.add.f32 (6.0): no value back; sums of several threads come in no stated order.
TANDEM_DEVICE void reduce_add(float* pointer, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(pointer), "f"(value) : "memory");
}

// Flags between blocks: what the thread that released wrote before, the thread that acquired its value sees after.
// ld.acquire.gpu, st.release.gpu, red.release.gpu.add (6.0).
TANDEM_DEVICE uint32_t load_acquire(const uint32_t* pointer) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}
TANDEM_DEVICE void store_release(uint32_t* pointer, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}
TANDEM_DEVICE void reduce_add_release(uint32_t* pointer, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

}  // namespace tandem::sm90::ptx
