#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/int_math.h"
#include "core/mask.h"
#include "sm90/backward/preprocess_params.h"
#include "sm90/backward/q_blocks.cuh"
#include "sm90/forward/row_keys.cuh"
#include "sm90/merge/columns.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/unpack.cuh"
#include "sm90/tile/warp_reduce.cuh"

// What the backward kernel needs of each row before it begins:
//
//     delta = rowsum(dO * O) - dLSE            LSE * log2(e)
//
// and dQ set to 0. Bound by memory: each block of threads reads dO and O of one q_block once. 8 threads share a row:
// each takes 8 columns of every panel of 64. The sums go through shared memory to the first warp, which has a row in
// each lane for the rest.
namespace tandem::sm90 {

constexpr float kLog2EOfFloat = 1.44269504f;

// Shared memory: the sum of each row.
constexpr uint32_t kRowSums = ptx::kDynamicSharedBase;

template <typename Traits>
struct PreprocessShape {
  static constexpr int kSharers = 8;  // threads of a row
  static constexpr int kPanels = ceil_div(Traits::kHeadDimV, 64);
  static constexpr int kRowsAtOnce = kQBlockThreads / kSharers;
  static constexpr int kRowsOfThread = Traits::kBlockM / kRowsAtOnce;
  static constexpr int kRowsOfLane = Traits::kBlockM / ptx::kWarpThreads;  // of the first warp
  static constexpr int kBlocksOnSm = kPanels <= 2 ? 4 : 2;  // so that all loads of a thread fit into its registers
};

// What a thread reads of its rows, all of it under way at once.
template <typename Traits>
struct RowsOfThread {
  using Shape = PreprocessShape<Traits>;
  RowChunk dout[Shape::kRowsOfThread][Shape::kPanels];
  RowChunk out[Shape::kRowsOfThread][Shape::kPanels];
};

TANDEM_DEVICE RowChunk load_chunk(const void* data, int64_t element) {
  return ptx::load_global(reinterpret_cast<const RowChunk*>(static_cast<const uint16_t*>(data) + element));
}

// Of a row that is not used, another one's; of columns past the end, the row's first. Their sums are dropped.
template <typename Traits>
TANDEM_DEVICE void load_rows_of_thread(const PreprocessParams& params, const QBlock& block,
                                       RowsOfThread<Traits>& rows) {
  using Shape = PreprocessShape<Traits>;
  const int last_row = max_of(block.q_len, 1) - 1;
  TANDEM_UNROLL
  for (int i = 0; i < Shape::kRowsOfThread; ++i) {
    const int row = min_of(block.first_row + ptx::thread_rank() / Shape::kSharers + i * Shape::kRowsAtOnce, last_row);
    const int64_t dout = row_offset(block, params.dout_strides, row);
    const int64_t out = row_offset(block, params.out_strides, row);
    TANDEM_UNROLL
    for (int panel = 0; panel < Shape::kPanels; ++panel) {
      const int column = panel * 64 + ptx::thread_rank() % Shape::kSharers * 8;
      const int at = column < params.headdim_v ? column : 0;
      rows.dout[i][panel] = load_chunk(params.dout, dout + at);
      rows.out[i][panel] = load_chunk(params.out, out + at);
    }
  }
}

template <typename Element>
TANDEM_DEVICE float dot(const RowChunk& a, const RowChunk& b) {
  float sum = 0;
  TANDEM_UNROLL
  for (int w = 0; w < 4; ++w) {
    sum = ptx::fma(low_half<Element>(a.word[w]), low_half<Element>(b.word[w]), sum);
    sum = ptx::fma(high_half<Element>(a.word[w]), high_half<Element>(b.word[w]), sum);
  }
  return sum;
}

// rowsum(dO * O) to shared memory.
template <typename Traits>
TANDEM_DEVICE void sum_rows_of_thread(const PreprocessParams& params, const RowsOfThread<Traits>& rows) {
  using Shape = PreprocessShape<Traits>;
  const int sharer = ptx::thread_rank() % Shape::kSharers;
  TANDEM_UNROLL
  for (int i = 0; i < Shape::kRowsOfThread; ++i) {
    float sum = 0;
    TANDEM_UNROLL
    for (int panel = 0; panel < Shape::kPanels; ++panel) {
      const float part = dot<typename Traits::Element>(rows.dout[i][panel], rows.out[i][panel]);
      sum = ptx::add(sum, panel * 64 + sharer * 8 < params.headdim_v ? part : 0.0f);
    }
    TANDEM_UNROLL
    for (int lanes = 1; lanes < Shape::kSharers; lanes *= 2) sum = ptx::add(sum, ptx::shuffle_xor(sum, lanes));
    const int m = ptx::thread_rank() / Shape::kSharers + i * Shape::kRowsAtOnce;
    if (sharer == 0) ptx::store_shared(kRowSums + static_cast<uint32_t>(m) * 4, sum);
  }
}

template <typename Traits>
TANDEM_DEVICE void clear_dq(const PreprocessParams& params, const QBlock& block) {
  constexpr int kElements = Traits::kBlockM * Traits::kHeadDim;
  float* const dq = params.dq + int64_t{block.index} * kElements;
  TANDEM_UNROLL
  for (int i = 0; i < kElements; i += kQBlockThreads * 4) {
    ptx::store_global(reinterpret_cast<RowChunk*>(dq + i + ptx::thread_rank() * 4), RowChunk{});
  }
}

// LSE and dLSE of a lane's rows: m = lane, lane + 32, ... Rows that are not used see no key.
template <typename Traits>
struct LseOfLane {
  float lse[PreprocessShape<Traits>::kRowsOfLane];
  float dlse[PreprocessShape<Traits>::kRowsOfLane];
};

template <typename Traits>
TANDEM_DEVICE void load_lse(const PreprocessParams& params, const QBlock& block, LseOfLane<Traits>& values) {
  TANDEM_UNROLL
  for (int i = 0; i < PreprocessShape<Traits>::kRowsOfLane; ++i) {
    const int row = block.first_row + i * ptx::kWarpThreads + ptx::lane_index();
    values.lse[i] = -INFINITY;
    values.dlse[i] = 0;
    if (row >= block.q_len) continue;
    values.lse[i] = ptx::load_global(params.lse + row_offset(block, params.lse_strides, row));
    if (params.dlse != nullptr) {
      values.dlse[i] = ptx::load_global(params.dlse + row_offset(block, params.dlse_strides, row));
    }
  }
}

TANDEM_DEVICE void include_row(MBlockBounds& bounds, const BasicRowInterval<int>& keys) {
  if (keys.empty()) {
    bounds.max_lo = INT32_MAX;
  } else {
    bounds.min_lo = min_of(bounds.min_lo, keys.lo);
    bounds.max_lo = max_of(bounds.max_lo, keys.lo);
    bounds.min_hi = min_of(bounds.min_hi, keys.hi);
    bounds.max_hi = max_of(bounds.max_hi, keys.hi);
  }
}

TANDEM_DEVICE float sum_over_warp(float value) {
  TANDEM_UNROLL
  for (int lanes = 16; lanes > 0; lanes /= 2) value = ptx::add(value, ptx::shuffle_xor(value, lanes));
  return value;
}

TANDEM_DEVICE bool is_finite(float value) {
  return -INFINITY < value && value < INFINITY;
}

// -exp(sink - LSE) delta: a row's share of dsink.
TANDEM_DEVICE float dsink_of_row(float sink, float lse, float delta) {
  return -ptx::mul(ptx::ex2(ptx::mul(sink - lse, kLog2EOfFloat)), delta);
}

// Exponents are scale_log2 * S - this. Where both are so large that their rounding is worth more than a factor of 2, a
// slack keeps P from growing beyond 1, and to infinity. (Such P means little: LSE is rounded to fp32, too.)
TANDEM_DEVICE float lse_in_log2(float lse) {
  constexpr float kLarge = 1048576.0f;  // 2^20
  const float in_log2 = ptx::mul(lse, kLog2EOfFloat);
  return fabsf(in_log2) > kLarge ? ptx::fma(fabsf(in_log2), 1 / kLarge, in_log2) : in_log2;
}

// The first warp. A row with LSE -inf, and one that sees no key by the mask, take no part, whatever they hold. (With a
// sink such a row has a finite LSE, and its dLSE counts for dsink.)
template <typename Traits>
TANDEM_DEVICE void finish_rows(const PreprocessParams& params, const QBlock& block, const LseOfLane<Traits>& values) {
  MBlockBounds bounds{INT32_MAX, 0, INT32_MAX, 0};
  const float sink = params.sink == nullptr ? 0 : ptx::load_global(params.sink + block.head * params.sink_stride);
  float dsink = 0;
  TANDEM_UNROLL
  for (int i = 0; i < PreprocessShape<Traits>::kRowsOfLane; ++i) {
    const int m = i * ptx::kWarpThreads + ptx::lane_index();
    const BasicRowInterval<int> keys =
        row_keys<Traits>(params, block.q_begin, block.first_row + m, block.q_len, block.k_len, block.head, block.batch);
    const float lse = values.lse[i];
    const float sum = ptx::load_shared<float>(kRowSums + static_cast<uint32_t>(m) * 4);
    const float delta = is_finite(lse) ? sum - values.dlse[i] : sum;
    const bool sees = lse != -INFINITY && !keys.empty();
    const int64_t place = int64_t{block.index} * Traits::kBlockM + row_value_place(m);
    ptx::store_global(params.lse_log2 + place, sees ? lse_in_log2(lse) : INFINITY);
    ptx::store_global(params.delta + place, sees ? delta : 0.0f);
    include_row(bounds, keys);
    if (params.sink != nullptr && lse != -INFINITY) dsink = ptx::add(dsink, dsink_of_row(sink, lse, delta));
  }
  if (params.bounds != nullptr) {
    bounds = {min_over_warp(bounds.min_lo), max_over_warp(bounds.max_lo), min_over_warp(bounds.min_hi),
              max_over_warp(bounds.max_hi)};
    if (ptx::lane_index() == 0) ptx::store_global(params.bounds + block.index, bounds);
  }
  if (params.sink != nullptr) {
    dsink = sum_over_warp(dsink);
    if (ptx::lane_index() == 0) ptx::store_global(params.dsink_partials + block.index, dsink);
  }
}

template <typename Traits>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kQBlockThreads, PreprocessShape<Traits>::kBlocksOnSm)
    preprocess_kernel(const TANDEM_GRID_CONSTANT PreprocessParams params) {
  const int index = ptx::block_index();
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  ptx::wait_for_previous_grid();
  if (params.blocks.sequences == nullptr && index == 0 && ptx::thread_rank() == 0) {
    ptx::store_global(&params.workspace->next_tile, uint32_t{0});
  }
  if (!is_q_block(params.blocks, index)) return;
  const QBlock block = find_q_block(params.blocks, index, Traits::kBlockM);
  const bool finishes = ptx::warp_index() == 0;
  LseOfLane<Traits> lse{};
  if (finishes) load_lse<Traits>(params, block, lse);
  RowsOfThread<Traits> rows;
  load_rows_of_thread<Traits>(params, block, rows);
  clear_dq<Traits>(params, block);
  sum_rows_of_thread<Traits>(params, rows);
  ptx::block_sync();
  if (finishes) finish_rows<Traits>(params, block, lse);
}

}  // namespace tandem::sm90
