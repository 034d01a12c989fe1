#pragma once

#include <cmath>
#include <cstdint>

#include "cuda_check.h"
#include "device_floats.cuh"
#include "tensor_core_sum.h"

// What the oracles of the forward and of the backward are made of. Kernels here have at most kOracleThreads threads.
namespace tandem::gpu_test {

constexpr int kOracleThreads = 128;
constexpr int kOracleBlocks = 132 * 8;

template <typename Combine>
__device__ double block_reduce(double value, Combine combine) {
  __shared__ double partial[kOracleThreads];
  __syncthreads();
  partial[threadIdx.x] = value;
  __syncthreads();
  for (unsigned int width = blockDim.x / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + width]);
    __syncthreads();
  }
  return partial[0];
}

__device__ inline double block_max(double value) {
  return block_reduce(value, [](double a, double b) { return a > b ? a : b; });
}
__device__ inline double block_sum(double value) {
  return block_reduce(value, [](double a, double b) { return a + b; });
}

struct alignas(16) EightElements {
  uint16_t bits[8];
};

struct Dot {
  double sum;
  double size;      // sum of the terms' magnitudes
  double by_cores;  // e4m3: the sum that tensor cores give
};

__device__ inline Dot dot(const uint16_t* a, const uint16_t* b, int64_t length, int32_t dtype) {
  Dot result{0, 0, 0};
  for (int64_t c = 0; c < length; c += 8) {
    const EightElements x = *reinterpret_cast<const EightElements*>(a + c);
    const EightElements y = *reinterpret_cast<const EightElements*>(b + c);
    for (int n = 0; n < 8; ++n) {
      const double term =
          static_cast<double>(from_16bit(dtype, x.bits[n])) * static_cast<double>(from_16bit(dtype, y.bits[n]));
      result.sum += term;
      result.size += fabs(term);
    }
  }
  return result;
}

__device__ inline Dot dot(const uint8_t* a, const uint8_t* b, int64_t length) {
  const auto x = [a](int64_t c) { return static_cast<double>(from_e4m3(a[c])); };
  const auto y = [b](int64_t c) { return static_cast<double>(from_e4m3(b[c])); };
  Dot result{0, 0, optest::tensor_core_sum(length, x, y)};
  for (int64_t c = 0; c < length; ++c) {
    result.sum += x(c) * y(c);
    result.size += fabs(x(c) * y(c));
  }
  return result;
}

__device__ inline double capped(double score, double softcap) {
  return softcap > 0 ? softcap * tanh(score / softcap) : score;
}

// exp(scores - max) / sum in place of the scores. Returns LSE.
__device__ inline double softmax(double* scores, int64_t count, double sink) {
  double largest = sink;
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) largest = scores[j] > largest ? scores[j] : largest;
  largest = block_max(largest);
  double sum = 0;
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) {
    scores[j] = largest == -INFINITY ? 0 : exp(scores[j] - largest);
    sum += scores[j];
  }
  sum = block_sum(sum) + (largest == -INFINITY ? 0 : exp(sink - largest));
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) scores[j] = sum > 0 ? scores[j] / sum : 0;
  return largest == -INFINITY ? -INFINITY : largest + log(sum);
}

// A maximum over blocks of doubles >= 0, whose bits compare like them.
__device__ inline void raise_to(unsigned long long* maximum, double value) {
  atomicMax(maximum, static_cast<unsigned long long>(__double_as_longlong(value)));
}

inline double double_of(unsigned long long bits) {
  union {
    unsigned long long bits;
    double value;
  } both = {bits};
  return both.value;
}

template <typename T>
T device_value(const T* address) {
  T value;
  TANDEM_CHECK_CUDA(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

}  // namespace tandem::gpu_test
