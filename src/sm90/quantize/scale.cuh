#pragma once

#include <cmath>
#include <cstdint>

#include "core/fp8.h"
#include "core/problem.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/quantize/work.cuh"

// From a block's largest magnitude to its scale, and on to e4m3. Values may be subnormal, whatever their scale: the
// operators of C++ keep those, the functions of ptx/math.cuh do not.
namespace tandem::sm90 {

constexpr float kSmallestScale = 0x1p-126f;

// Within 2^-23 of largest / 448.
TANDEM_DEVICE float scale_for(float largest) {
  return ptx::max(ptx::mul(largest, 1 / kE4m3Max), kSmallestScale);
}

TANDEM_DEVICE float max_over_warp(float value) {
  TANDEM_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) value = ptx::max(value, ptx::shuffle_xor(value, lanes));
  return value;
}

// Over the threads of the block, which all call; values are >= 0. `smem`: a word for each warp, a multiple of 4.
template <int kThreads>
TANDEM_DEVICE float max_over_block(float value, uint32_t smem) {
  constexpr int kWarps = kThreads / ptx::kWarpThreads;
  static_assert(kWarps % 4 == 0);
  value = max_over_warp(value);
  const int thread = ptx::thread_rank_anew();
  const auto warp = static_cast<uint32_t>(thread / ptx::kWarpThreads);
  if (thread % ptx::kWarpThreads == 0) ptx::store_shared(smem + warp * 4, value);
  ptx::block_sync();
  struct alignas(16) Four {
    float value[4];
  };
  TANDEM_UNROLL
  for (int w = 0; w < kWarps; w += 4) {
    const auto four = ptx::load_shared<Four>(smem + static_cast<uint32_t>(w) * 4);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) value = ptx::max(value, four.value[i]);
  }
  return value;
}

// 1 / scale of a known scale; rows of no sequence have none, and are 0.
TANDEM_DEVICE float known_inverse(const QuantizeItem& item) {
  return item.used > 0 ? ptx::rcp(ptx::load_global(item.scale)) : 1.0f;
}

// All threads call with the largest magnitude of what they hold. Records the block's scale; returns 1 / scale.
template <int kThreads>
TANDEM_DEVICE float find_inverse(const QuantizeParams& params, const QuantizeItem& item, float largest, uint32_t smem) {
  const float scale = scale_for(max_over_block<kThreads>(largest, smem));
  if (ptx::thread_rank_anew() == 0 && item.records) {
    if (params.pass == QuantizePass::kLargest) {
      // Scales are positive, so their bits are ordered as they are, and they as the largest magnitudes of their blocks.
      ptx::reduce_max(reinterpret_cast<uint32_t*>(item.scale), ptx::float_to_bits(scale));
    } else {
      ptx::store_global(item.scale, scale);
    }
  }
  return ptx::rcp(scale);
}

// Calls work(item) for each item of this thread block.
template <typename Work>
TANDEM_DEVICE void for_each_item(const QuantizeParams& params, const Work& work) {
  for (int round = 0;; ++round) {
    const int64_t index = ptx::block_index() + int64_t{round} * ptx::grid_size();
    if (index >= params.items) return;
    if (round > 0) ptx::block_sync();  // shared memory is free again
    const QuantizeItem item = find_item(params, index);
    if (item.has_work) work(item);
  }
}

}  // namespace tandem::sm90
