#pragma once

#include <cmath>

#include "device_floats.cuh"
#include "fill.h"

// What the kernels that fill inputs have in common.
namespace tandem::gpu_test {

constexpr int kFillThreads = 256;
constexpr int kFillBlocks = 132 * 8;

__device__ inline int64_t first_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t index_step() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

__device__ inline float normal(uint64_t seed, uint64_t index) {
  const uint64_t bits = hash_of(seed, index);
  const float radius = sqrtf(-2 * logf((static_cast<float>(bits >> 40) + 1) * 0x1p-24f));
  return radius * cosf(6.2831853f * static_cast<float>(bits & 0xffffff) * 0x1p-24f);
}

__device__ inline double wild_value(uint64_t seed, uint64_t row, double value) {
  switch (hash_of(seed, row) % 4) {
    case 0: return NAN;
    case 1: return value < 0 ? -INFINITY : INFINITY;
    default: return 5000 * value;
  }
}

}  // namespace tandem::gpu_test
