#pragma once

#include <cmath>
#include <cstdint>

#include "sm90/backward/postprocess_params.h"
#include "sm90/backward/q_blocks.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"

// dQ, scaled and rounded to the caller's tensor, of the sums that the backward kernel leaves in the order of its
// accumulators; and dsink. Bound by memory. A warp takes a strip at a time: the 4 KB of 16 rows of 64 columns, or 2 of
// 32.
namespace tandem::sm90 {

// Shared memory: a sum of each thread.
constexpr uint32_t kThreadSums = ptx::kDynamicSharedBase;
constexpr uint32_t kPostprocessSmemBytes = kQBlockThreads * 4;

constexpr int kStripGroups = 8;  // of 8 columns

struct StripPlace {
  int m;       // first row, in the m_block
  int column;  // first column
};

template <typename Traits>
TANDEM_DEVICE StripPlace place_of_strip(int strip) {
  constexpr int kSquaresOfRow = ceil_div(Traits::kHeadDim, 64);
  const int square = strip / 4;
  return {square / kSquaresOfRow * 64 + strip % 4 * 16, square % kSquaresOfRow * 64};
}

// Four lanes side by side: lane i's v[j] goes to lane j's v[i].
TANDEM_DEVICE void transpose_quad(uint32_t (&v)[4]) {
  TANDEM_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool odd = (ptx::lane_index() & bit) != 0;
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t received = ptx::shuffle_xor(odd ? v[i] : v[i + bit], bit);
      if (odd) {
        v[i] = received;
      } else {
        v[i + bit] = received;
      }
    }
  }
}

// A lane's share of a strip: pairs of columns 2 (lane % 4) of each group, in row lane / 4 and in the row 8 further.
struct StripSums {
  struct Pairs {
    float low[2], high[2];
  };
  Pairs group[kStripGroups];
};

TANDEM_DEVICE void load_strip(const float* sums, int groups, StripSums& strip) {
  TANDEM_UNROLL
  for (int g = 0; g < kStripGroups; ++g) {
    if (g >= groups) break;
    const float* const place = sums + g * 128 + ptx::lane_index() * 4;
    strip.group[g] = ptx::load_global(reinterpret_cast<const StripSums::Pairs*>(place));
  }
}

// Row `row` of the sequence: the lane's half of its strip, from column 8 (lane % 4) on, then 32 columns further.
template <typename Traits>
TANDEM_DEVICE void store_row(const PostprocessParams& params, const QBlock& block, int row, int first_column,
                             uint32_t (&pairs)[kStripGroups], bool sees) {
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    uint32_t words[4];
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = sees ? pairs[half * 4 + i] : 0;
    transpose_quad(words);
    const int column = first_column + half * 32 + ptx::lane_index() % 4 * 8;
    if (row < block.q_rows && column < params.headdim) {
      auto* const target = static_cast<uint16_t*>(params.dq) + row_offset(block, params.dq_strides, row) + column;
      ptx::store_global(reinterpret_cast<RowChunk*>(target), RowChunk{words[0], words[1], words[2], words[3]});
    }
  }
}

// A whole warp. Rows that see no key get 0, whatever their sums hold.
template <typename Traits>
TANDEM_DEVICE void write_strip(const PostprocessParams& params, const QBlock& block, int strip_index) {
  const StripPlace place = place_of_strip<Traits>(strip_index);
  if (place.column >= params.headdim || block.first_row + place.m >= block.q_rows) return;
  constexpr int kElements = Traits::kBlockM * Traits::kHeadDim;
  StripSums strip{};
  const int groups =
      Traits::kHeadDim % 64 == 0 ? kStripGroups : min_of(kStripGroups, (Traits::kHeadDim - place.column) / 8);
  const int first = dq_place(place.m, place.column, Traits::kHeadDim);
  load_strip(params.sums + int64_t{block.index} * kElements + first, groups, strip);
  const float* const lse_log2 = params.lse_log2 + int64_t{block.index} * Traits::kBlockM;
  const int m = place.m + ptx::lane_index() / 4;
  const bool low_sees = ptx::load_global(lse_log2 + row_value_place(m)) != INFINITY;
  const bool high_sees = ptx::load_global(lse_log2 + row_value_place(m + 8)) != INFINITY;
  uint32_t low[kStripGroups];
  uint32_t high[kStripGroups];
  TANDEM_UNROLL
  for (int g = 0; g < kStripGroups; ++g) {
    const StripSums::Pairs& pairs = strip.group[g];
    low[g] = pack2<typename Traits::Element>(ptx::mul(pairs.low[0], params.softmax_scale),
                                             ptx::mul(pairs.low[1], params.softmax_scale));
    high[g] = pack2<typename Traits::Element>(ptx::mul(pairs.high[0], params.softmax_scale),
                                              ptx::mul(pairs.high[1], params.softmax_scale));
  }
  store_row<Traits>(params, block, block.first_row + m, place.column, low, low_sees);
  store_row<Traits>(params, block, block.first_row + m + 8, place.column, high, high_sees);
}

// dsink of one head, always in the same order: each thread every so many m_blocks, then the threads pair by pair.
TANDEM_DEVICE void sum_dsink(const PostprocessParams& params, int head) {
  const int thread = ptx::thread_rank();
  const uint32_t place = kThreadSums + static_cast<uint32_t>(thread) * 4;
  const int m_blocks = count_m_blocks(params.blocks);
  float sum = 0;
  for (int m_block = thread; m_block < m_blocks; m_block += kQBlockThreads) {
    const int64_t q_block = q_block_index(m_block, head, params.blocks.nheads_q);
    sum = ptx::add(sum, ptx::load_global(params.dsink_partials + q_block));
  }
  ptx::store_shared(place, sum);
  for (int others = kQBlockThreads / 2; others > 0; others /= 2) {
    ptx::block_sync();
    if (thread >= others) continue;
    sum = ptx::add(sum, ptx::load_shared<float>(place + static_cast<uint32_t>(others) * 4));
    ptx::store_shared(place, sum);
  }
  if (thread == 0) ptx::store_global(params.dsink + head * params.dsink_stride, sum);
}

template <typename Traits>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kQBlockThreads, 4)
    postprocess_kernel(const TANDEM_GRID_CONSTANT PostprocessParams params) {
  const int index = ptx::block_index();
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::wait_for_previous_grid();
  if (params.dsink_partials != nullptr && index < params.blocks.nheads_q) sum_dsink(params, index);
  if (!is_q_block(params.blocks, index)) return;
  const QBlock block = find_q_block(params.blocks, index, Traits::kBlockM);
  constexpr int kStrips = Traits::kBlockM / 16 * ceil_div(Traits::kHeadDim, 64);
  for (int strip = ptx::warp_index(); strip < kStrips; strip += (kQBlockThreads / ptx::kWarpThreads)) {
    write_strip<Traits>(params, block, strip);
  }
}

}  // namespace tandem::sm90
