#pragma once

#include <cstdint>
#include <cstring>

#include "core/problem.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/math.cuh"

// Runs of kColumns elements of a row in global memory: 1, or 8 that begin at a multiple of 16 bytes. Elements are fp32
// (T: uint32_t) or of 16 bits (uint16_t).
namespace tandem::sm90 {

template <typename T>
struct alignas(16) Vector16 {
  T value[16 / sizeof(T)];
};

template <typename T, int kColumns>
TANDEM_DEVICE void load_bits(const void* data, int64_t element, T (&bits)[kColumns]) {
  const T* source = static_cast<const T*>(data) + element;
  if constexpr (kColumns == 1) {
    bits[0] = ptx::load_global(source);
  } else {
    constexpr int kEach = 16 / sizeof(T);
    TANDEM_UNROLL
    for (int first = 0; first < kColumns; first += kEach) {
      const auto loaded = ptx::load_global(reinterpret_cast<const Vector16<T>*>(source + first));
      TANDEM_UNROLL
      for (int i = 0; i < kEach; ++i) bits[first + i] = loaded.value[i];
    }
  }
}

template <typename T, int kColumns>
TANDEM_DEVICE void store_bits(void* data, int64_t element, const T (&bits)[kColumns]) {
  T* target = static_cast<T*>(data) + element;
  if constexpr (kColumns == 1) {
    ptx::store_global(target, bits[0]);
  } else {
    constexpr int kEach = 16 / sizeof(T);
    TANDEM_UNROLL
    for (int first = 0; first < kColumns; first += kEach) {
      Vector16<T> stored;
      TANDEM_UNROLL
      for (int i = 0; i < kEach; ++i) stored.value[i] = bits[first + i];
      ptx::store_global(reinterpret_cast<Vector16<T>*>(target + first), stored);
    }
  }
}

// Exact. The product scales the exponent's bias of 15 to fp32's, subnormal numbers included; it must not flush those.
TANDEM_DEVICE float fp16_to_float(uint16_t bits) {
  constexpr float kBias = 0x1p112f;
  const uint32_t magnitude = (bits & 0x7fffu) << 13;
  const bool finite = (bits & 0x7c00u) != 0x7c00u;
  const uint32_t scaled = ptx::float_to_bits(ptx::bits_to_float(magnitude) * kBias);
  return ptx::bits_to_float((finite ? scaled : magnitude | 0x7f800000u) | (bits & 0x8000u) << 16);
}

template <int kColumns>
TANDEM_DEVICE void load_columns(const Tensor& from, int64_t element, float (&values)[kColumns]) {
  if (from.dtype == DType::kFp32) {
    uint32_t bits[kColumns];
    load_bits(from.data, element, bits);
    TANDEM_UNROLL
    for (int i = 0; i < kColumns; ++i) values[i] = ptx::bits_to_float(bits[i]);
  } else {
    uint16_t bits[kColumns];
    load_bits(from.data, element, bits);
    TANDEM_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      const uint32_t word = bits[i];
      values[i] = from.dtype == DType::kBf16 ? ptx::bits_to_float(word << 16) : fp16_to_float(bits[i]);
    }
  }
}

template <int kColumns>
TANDEM_DEVICE void store_columns(const Tensor& to, int64_t element, const float (&values)[kColumns]) {
  if (to.dtype == DType::kFp32) {
    uint32_t bits[kColumns];
    TANDEM_UNROLL
    for (int i = 0; i < kColumns; ++i) bits[i] = ptx::float_to_bits(values[i]);
    store_bits(to.data, element, bits);
  } else {
    uint16_t bits[kColumns];
    TANDEM_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      const uint32_t pair =
          to.dtype == DType::kBf16 ? ptx::pack_bf16x2(values[i], 0.0f) : ptx::pack_f16x2(values[i], 0.0f);
      bits[i] = static_cast<uint16_t>(pair);
    }
    store_bits(to.data, element, bits);
  }
}

// Bit for bit, NaN's included; both tensors have one type.
template <int kColumns>
TANDEM_DEVICE void copy_columns(const Tensor& from, int64_t from_element, const Tensor& to, int64_t to_element) {
  if (from.dtype == DType::kFp32) {
    uint32_t bits[kColumns];
    load_bits(from.data, from_element, bits);
    store_bits(to.data, to_element, bits);
  } else {
    uint16_t bits[kColumns];
    load_bits(from.data, from_element, bits);
    store_bits(to.data, to_element, bits);
  }
}

}  // namespace tandem::sm90
