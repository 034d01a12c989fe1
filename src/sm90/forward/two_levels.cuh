#pragma once

#include <cmath>
#include <cstdint>

#include "sm90/forward/consumer_state.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/scales.cuh"
#include "sm90/forward/traits.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/softmax.cuh"

// O in e4m3, and the sums that normalize it, of P as it was rounded: what rounding adds to a row's P, or takes,
// cancels. The tensor core cuts the low bits off its sums, the more the longer they are; so it sums P V of a few key
// blocks, and the sum, times V's scale, joins O in fp32: in registers, or each thread's part in shared memory.
namespace tandem::sm90 {

// A thread's part of O in shared memory, four values side by side. No other thread touches it until the tile's end.
struct SumWords {
  float value[4];
};
template <typename Traits>
TANDEM_DEVICE uint32_t sum_address() {
  const auto rank = static_cast<uint32_t>(ptx::thread_rank_anew()) - ptx::kWarpgroupThreads;
  return Traits::kSmemSum + rank / ptx::kWarpgroupThreads * Traits::kSumBytes + rank % ptx::kWarpgroupThreads * 16;
}
constexpr uint32_t kSumStride = ptx::kWarpgroupThreads * 16;  // to the thread's next four values

// O += scale acc_pv in shared memory; at the tile's end into acc_pv instead.
template <typename Traits>
TANDEM_DEVICE void add_to_shared_sum(ConsumerState<Traits>& state, float scale, bool last) {
  const uint32_t address = sum_address<Traits>();
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kHeadDimV / 2; i += 4) {
    const uint32_t place = address + static_cast<uint32_t>(i / 4) * kSumStride;
    SumWords sum{};
    if (state.sum_begun) sum = ptx::load_shared<SumWords>(place);
    TANDEM_UNROLL
    for (int k = 0; k < 4; ++k) sum.value[k] = ptx::fma(state.acc_pv[i + k], scale, sum.value[k]);
    if (last) {
      TANDEM_UNROLL
      for (int k = 0; k < 4; ++k) state.acc_pv[i + k] = sum.value[k];
    } else {
      ptx::store_shared(place, sum);
    }
  }
  state.sum_begun = true;
}

// Or 0: rcp() would be infinite.
TANDEM_DEVICE bool is_subnormal(float value) {
  return std::fabs(value) < 0x1p-126f;
}

TANDEM_DEVICE float low_bf16(uint32_t pair) {
  return ptx::bits_to_float(pair << 16);
}
TANDEM_DEVICE float high_bf16(uint32_t pair) {
  return ptx::bits_to_float(pair & 0xffff0000u);
}

// kSumIsBf16: O + scale acc_pv, times the rows' factors, to O in shared memory, rounded to bf16. What that rounds off
// stays in acc_pv, and so nothing is lost; at the tile's end all of it. Unless kAllRows, only rows whose factor is not
// 1: others stay as they are, bit for bit [12].
struct Bf16SumWords {
  uint32_t pair[4];
};
template <bool kAllRows, typename Traits>
TANDEM_DEVICE void add_to_bf16_sum(ConsumerState<Traits>& state, const float (&factor)[2], bool last) {
  const uint32_t address = sum_address<Traits>();
  const float scale = state.v_scale;
  const float to_units = is_subnormal(scale) ? 0.0f : ptx::rcp(scale);
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kHeadDimV / 2; i += 8) {
    const uint32_t place = address + static_cast<uint32_t>(i / 8) * kSumStride;
    Bf16SumWords sum{};
    if (state.sum_begun) sum = ptx::load_shared<Bf16SumWords>(place);
    TANDEM_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (!kAllRows && factor[half_of(2 * k)] == 1.0f) continue;
      float& low = state.acc_pv[i + 2 * k];
      float& high = state.acc_pv[i + 2 * k + 1];
      low = ptx::mul(ptx::fma(low, scale, low_bf16(sum.pair[k])), factor[half_of(2 * k)]);
      high = ptx::mul(ptx::fma(high, scale, high_bf16(sum.pair[k])), factor[half_of(2 * k)]);
      if (last) continue;
      sum.pair[k] = ptx::pack_bf16x2(low, high);
      low = ptx::mul(low - low_bf16(sum.pair[k]), to_units);
      high = ptx::mul(high - high_bf16(sum.pair[k]), to_units);
    }
    if (!last) ptx::store_shared(place, sum);
  }
  state.sum_begun = true;
}

// acc_pv is in units of the scale of the blocks of V in it; where scales differ, it goes from one to the next. One unit
// is never so small beside another of the tile that acc_pv could overflow: a block whose scale is, or is 0, counts as
// one of the smallest unit, next to nothing.
constexpr float kSmallestUnit = 0x1p-120f;
constexpr float kUnitRange = 0x1p-80f;

// Before a tile's first P V.
template <typename Traits>
TANDEM_DEVICE void begin_units(ConsumerState<Traits>& state) {
  state.v_scale = state.next_v_scale;
  state.smallest_unit = ptx::max(kSmallestUnit, std::fabs(state.v_scale) * kUnitRange);
}

// Before the next P V. O in registers is promoted instead, after each block.
template <typename Traits>
TANDEM_DEVICE void change_unit(ConsumerState<Traits>& state) {
  float unit = state.next_v_scale;
  if constexpr (Traits::kOInShared) {
    const float size = std::fabs(unit);
    state.smallest_unit = ptx::max(state.smallest_unit, size * kUnitRange);
    if (size < state.smallest_unit) unit = state.smallest_unit;
    if (unit != state.v_scale && (Traits::kSumIsBf16 || state.pv_blocks > 0)) {
      const float ratio = ptx::mul(state.v_scale, ptx::rcp(unit));
      TANDEM_UNROLL
      for (int i = 0; i < Traits::kHeadDimV / 2; ++i) state.acc_pv[i] *= ratio;
    }
  }
  state.v_scale = unit;
}

// Of a row, whole: each of the columns of ones has it. Half 0 or 1 of the thread's rows.
template <typename Traits>
TANDEM_DEVICE float& sum_of_ones(ConsumerState<Traits>& state, int half) {
  if constexpr (Traits::kOnesApart) {
    return state.acc_ones[2 * half];
  } else {
    return state.acc_pv[Traits::kProductColumns / 2 - 4 + 2 * half];
  }
}

// kSumIsBf16: acc_pv joins O, times `factor`. Of all rows if it is time, or at the tile's end; in between of those that
// the block's softmax has rescaled.
template <bool kAllRows, typename Traits>
TANDEM_DEVICE void promote_to_bf16(ConsumerState<Traits>& state, const float (&factor)[2], bool last) {
  add_to_bf16_sum<kAllRows>(state, factor, last);
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (!kAllRows && factor[half] == 1.0f) continue;
    state.rounded_sum[half] += sum_of_ones(state, half);
    if (last) continue;
    state.rounded_sum[half] *= factor[half];
    sum_of_ones(state, half) = 0.0f;
  }
  if (kAllRows) state.pv_blocks = 0;
}

// The sum of pv_blocks key blocks joins O.
template <typename Traits>
TANDEM_DEVICE void promote(ConsumerState<Traits>& state, bool last) {
  if constexpr (Traits::kSumIsBf16) {
    const float factor[2] = {last ? 1.0f : state.sum_rescale[0], last ? 1.0f : state.sum_rescale[1]};
    promote_to_bf16<true>(state, factor, last);
    return;
  }
  if constexpr (Traits::kOInShared) {
    add_to_shared_sum(state, state.v_scale, last);
  } else {
    TANDEM_UNROLL
    for (int i = 0; i < Traits::kHeadDimV / 2; ++i) {
      state.acc_o[i] = ptx::fma(state.acc_pv[i], state.v_scale, state.acc_o[i]);
    }
  }
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) state.rounded_sum[half] += sum_of_ones(state, half);
  state.pv_blocks = 0;
}

// Both levels of O, row by row, when the rows' references change. The votes only skip multiplying by exactly 1.
template <typename Traits>
TANDEM_DEVICE void rescale_levels(ConsumerState<Traits>& state, const float (&rescale)[2]) {
  if constexpr (Traits::kSumIsBf16) {
    state.sum_rescale[0] = rescale[0];
    state.sum_rescale[1] = rescale[1];
    return;
  }
  if (state.pv_blocks > 0) {
    rescale_o(state.acc_pv, rescale);
    if constexpr (Traits::kOnesApart) rescale_o(state.acc_ones, rescale);
  }
  state.rounded_sum[0] *= rescale[0];
  state.rounded_sum[1] *= rescale[1];
  if constexpr (!Traits::kOInShared) {
    rescale_o(state.acc_o, rescale);
  } else {
    if (!state.sum_begun || !ptx::any_sync(rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
    const uint32_t address = sum_address<Traits>();
    TANDEM_NO_UNROLL
    for (int i = 0; i < Traits::kHeadDimV / 2; i += 4) {
      const uint32_t place = address + static_cast<uint32_t>(i / 4) * kSumStride;
      SumWords sum = ptx::load_shared<SumWords>(place);
      TANDEM_UNROLL
      for (int k = 0; k < 4; ++k) sum.value[k] *= rescale[half_of(k)];
      ptx::store_shared(place, sum);
    }
  }
}

// At the end of a block: the sum joins O if it is time, or if O is to be rescaled in bf16.
template <typename Traits>
TANDEM_DEVICE void promote_if_due(ConsumerState<Traits>& state, int promotion_blocks) {
  if (state.pv_blocks >= promotion_blocks) {
    promote(state, false);
  } else if constexpr (Traits::kSumIsBf16) {
    const bool rescaled = state.sum_rescale[0] != 1.0f || state.sum_rescale[1] != 1.0f;
    if (TANDEM_UNLIKELY(ptx::any_sync(rescaled))) promote_to_bf16<false>(state, state.sum_rescale, false);
  }
}

// O's normalizers, once the last product has joined; finish_rows() has left the share of the sink in their place.
template <typename Traits>
TANDEM_DEVICE void normalize_by_rounded_sums(ConsumerState<Traits>& state) {
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float total = state.rounded_sum[half] + state.rows.normalizer[half];
    state.rows.normalizer[half] = state.rows.sum[half] == 0.0f ? 0.0f : ptx::rcp(total);
  }
}

// Before a tile's first product.
template <typename Traits>
TANDEM_DEVICE void clear_levels(ConsumerState<Traits>& state) {
  state.sum_begun = false;
  state.rounded_sum[0] = state.rounded_sum[1] = 0.0f;
  if constexpr (!Traits::kOInShared) clear(state.acc_o);
}

}  // namespace tandem::sm90
