#pragma once

#include <cmath>
#include <cstdint>

#include "core/mask.h"
#include "sm90/backward/params.h"
#include "sm90/backward/row_keys.cuh"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/apply_mask.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/score_transform.cuh"

// What a consumer warpgroup does in a step: five products and what lies between them. Everything is transposed: the
// accumulators of S and dP have the consumer's 64 keys as rows and the step's queries as columns.
namespace tandem::sm90 {

// LSE or delta of four columns of a thread: row_value_place().
struct RowValues {
  float value[4];
};

template <typename Traits>
struct BackwardState {
  static constexpr bool kPrefetch = !Traits::kLateP;  // else registers are short
  static constexpr int kGroups = Traits::kBlockM / 16;

  float acc_dk[Traits::kHeadDim / 2];   // (64, kHeadDim)
  float acc_dv[Traits::kHeadDimV / 2];  // (64, kHeadDimV)
  float acc_s[Traits::kBlockM / 2];     // (64, kBlockM): S^T, then P^T
  float acc_dp[Traits::kBlockM / 2];    // (64, kBlockM): dP^T; unless split, its first 32 are also a square of dQ
  float acc_square[32];                 // split: (64, 64), of dQ
  uint32_t frag_p[kGroups][4];          // P^T in the element type
  RowValues values[kPrefetch ? kGroups : 1];

  TANDEM_DEVICE float (&acc_dq())[32] {
    if constexpr (Traits::kSplit) {
      return acc_square;
    } else {
      return reinterpret_cast<float (&)[32]>(acc_dp);
    }
  }
};

// ------------------------------------------------------------------------------------------------------- products

// S^T = K Q^T. (64, kHeadDim) x (kBlockM, kHeadDim)^T
template <typename Traits>
TANDEM_DEVICE void issue_s(BackwardState<Traits>& state, int q, int w) {
  using KTile = typename Traits::KTile;
  using QTile = typename Traits::QTile;
  const uint32_t k_offset = static_cast<uint32_t>(w) * 64 * KTile::kPanelRowBytes;
  const uint32_t q_offset = static_cast<uint32_t>(q) * QTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kBlockM>::template ss<>(
        state.acc_s, advance(KTile::k_major(Traits::kSmemK, step), k_offset),
        advance(QTile::k_major(Traits::kSmemQ, step), q_offset), step > 0);
  }
  ptx::wgmma_commit();
}

// dP^T = V dO^T. (64, kHeadDimV) x (kBlockM, kHeadDimV)^T
template <typename Traits>
TANDEM_DEVICE void issue_dp(BackwardState<Traits>& state, int o, int w) {
  using VTile = typename Traits::VTile;
  using DoTile = typename Traits::DoTile;
  const uint32_t v_offset = static_cast<uint32_t>(w) * 64 * VTile::kPanelRowBytes;
  const uint32_t o_offset = static_cast<uint32_t>(o) * DoTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kHeadDimV / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kBlockM>::template ss<>(
        state.acc_dp, advance(VTile::k_major(Traits::kSmemV, step), v_offset),
        advance(DoTile::k_major(Traits::kSmemDo, step), o_offset), step > 0);
  }
  ptx::wgmma_commit();
}

// dV += P^T dO. (64, kBlockM) x (kBlockM, kHeadDimV)
template <typename Traits>
TANDEM_DEVICE void issue_dv(BackwardState<Traits>& state, int o, bool accumulate) {
  using DoTile = typename Traits::DoTile;
  const uint32_t o_offset = static_cast<uint32_t>(o) * DoTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kBlockM / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kHeadDimV>::template rs<ptx::Major::kMn>(
        state.acc_dv, state.frag_p[step], advance(DoTile::mn_major(Traits::kSmemDo, step), o_offset),
        step > 0 || accumulate);
  }
  ptx::wgmma_commit();
}

// dK += dS^T Q, not scaled. (64, kBlockM) x (kBlockM, kHeadDim)
template <typename Traits>
TANDEM_DEVICE void issue_dk(BackwardState<Traits>& state, int ds, int q, int w, bool accumulate) {
  using DsTile = typename Traits::DsTile;
  using QTile = typename Traits::QTile;
  const uint32_t ds_offset =
      static_cast<uint32_t>(ds) * DsTile::kBytes + static_cast<uint32_t>(w) * DsTile::kPanelBytes;
  const uint32_t q_offset = static_cast<uint32_t>(q) * QTile::kBytes;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kBlockM / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, Traits::kHeadDim>::template ss<ptx::Major::kMn, ptx::Major::kMn>(
        state.acc_dk, advance(DsTile::mn_major(Traits::kSmemDs, step), ds_offset),
        advance(QTile::mn_major(Traits::kSmemQ, step), q_offset), step > 0 || accumulate);
  }
  ptx::wgmma_commit();
}

// A square of dQ = dS K, over all keys of the tile. (64, kBlockN) x (kBlockN, 64)
template <typename Traits>
TANDEM_DEVICE void issue_dq(BackwardState<Traits>& state, int ds, int square) {
  using DsTile = typename Traits::DsTile;
  using KTile = typename Traits::KTile;
  const uint32_t rows = Traits::kDqByRows ? static_cast<uint32_t>(square) * 64 * DsTile::kPanelRowBytes : 0;
  const uint32_t columns = Traits::kDqByRows ? 0 : static_cast<uint32_t>(square) * KTile::kPanelBytes;  // of 64 or 32
  const uint32_t ds_offset = static_cast<uint32_t>(ds) * DsTile::kBytes + rows;
  TANDEM_UNROLL
  for (int step = 0; step < Traits::kBlockN / 16; ++step) {
    ptx::Wgmma<typename Traits::Element, 64>::template ss<ptx::Major::kK, ptx::Major::kMn>(
        state.acc_dq(), advance(DsTile::k_major(Traits::kSmemDs, step), ds_offset),
        advance(KTile::mn_major(Traits::kSmemK, step), columns), step > 0);
  }
  ptx::wgmma_commit();
}

// ------------------------------------------------------------------------------------------------ between products

// This thread in its warpgroup, for addresses. PERF: where registers are shortest it is read anew each time.
template <typename Traits>
TANDEM_DEVICE FragmentThread place_of_thread() {
  return {fragment_thread().warp, Traits::kLateP ? fragment_thread().lane : ptx::lane_index()};
}

// Where this thread's first four values of a stage lie; those of group g are 64 g bytes on.
template <typename Traits>
TANDEM_DEVICE uint32_t values_address(uint32_t places, int stage) {
  return places + static_cast<uint32_t>(stage) * Traits::kRowValueBytes +
         static_cast<uint32_t>(place_of_thread<Traits>().lane % 4) * 16;
}

// PERF: loads from shared memory wait behind the matrix products' reads, so the next step's values are taken to
// registers before the products that they would wait for are issued.
template <typename Traits>
TANDEM_DEVICE void prefetch_values(BackwardState<Traits>& state, uint32_t address) {
  if constexpr (BackwardState<Traits>::kPrefetch) {
    TANDEM_UNROLL
    for (int group = 0; group < BackwardState<Traits>::kGroups; ++group) {
      state.values[group] = ptx::load_shared<RowValues>(address + group * 64);
    }
  }
}

template <typename Traits>
TANDEM_DEVICE RowValues values_of(const BackwardState<Traits>& state, uint32_t address, int group) {
  if constexpr (BackwardState<Traits>::kPrefetch) {
    return state.values[group];
  } else {
    return ptx::load_shared<RowValues>(address + group * 64);
  }
}

// Which of a group's four values belongs to accumulator element i.
constexpr TANDEM_HD int value_index(int i) {
  return i / 4 % 2 * 2 + i % 2;
}

// Selects the scores away that interval arrays hide: `keys` are this thread's two.
template <typename Traits>
TANDEM_DEVICE void apply_intervals(float (&acc_s)[Traits::kBlockM / 2], const BackwardParams& params,
                                   BackwardSlot<Traits> slot, const BackwardStep& step, const int (&keys)[2]) {
  const TileQueryRange rows = slot.rows();
  const int batch = slot.sequence().batch;
  const int column = step.first_row + fragment_first_column();
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kBlockM / 2; ++i) {
    if (half_of(i) == 1) continue;  // the element two on has the same column
    const int row = column + fragment_column_offset(i);
    if (row >= rows.q_len) continue;  // LSE is infinite there
    const BasicRowInterval<int> shown = array_interval(params, rows.q_begin + row, step.head, batch);
    if (keys[0] < shown.lo || keys[0] >= shown.hi) acc_s[i] = -INFINITY;
    if (keys[1] < shown.lo || keys[1] >= shown.hi) acc_s[i + 2] = -INFINITY;
  }
}

// Selects the hidden scores of a step away. A key is seen by one run of rows [mask.h].
template <typename Traits>
TANDEM_DEVICE void hide_scores(BackwardState<Traits>& state, const BackwardParams& params, BackwardSlot<Traits> slot,
                               int q, int w) {
  const BackwardStep step = ptx::load_shared<BackwardStep>(step_address<Traits>(q));
  const TileKeyRange keys = slot.keys();
  const int q_len = slot.rows().q_len;
  BasicRowInterval<int> seeing[2];
  int key[2];
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    key[half] = keys.first_key + w * 64 + fragment_row(half);
    const BasicRowRange<int> rows = row_range(params.mask, key[half], key[half] + 1, q_len, keys.k_len);
    seeing[half] = {rows.begin, rows.end};
  }
  apply_mask(state.acc_s, seeing, step.first_row);
  if (Traits::kGeneral && (params.lo != nullptr || params.hi != nullptr)) {
    apply_intervals(state.acc_s, params, slot, step, key);
  }
}

// What may happen to scores before the softmax.
template <typename Traits>
TANDEM_DEVICE void transform_scores(BackwardState<Traits>& state, const BackwardParams& params) {
  if (params.transform == ScoreTransform::kMultiply) multiply_scores(state.acc_s, params.score_factor);
  if (params.transform == ScoreTransform::kSoftcap) softcap_scores(state.acc_s, params.score_factor);
}

// S^T to P^T = 2^(scale_log2 S - LSE), in fp32 and, unless that comes later, in the element type. Under a softcap acc_s
// then holds P (1 - tanh^2), what dS is to be multiplied by.
template <typename Traits>
TANDEM_DEVICE void scores_to_p(BackwardState<Traits>& state, const BackwardParams& params, uint32_t lse_address) {
  const bool softcap = Traits::kGeneral && params.transform == ScoreTransform::kSoftcap;
  const float scale_log2 = params.scale_log2;
  TANDEM_UNROLL
  for (int group = 0; group < BackwardState<Traits>::kGroups; ++group) {
    const RowValues lse = values_of(state, lse_address, group);
    TANDEM_UNROLL
    for (int i = 8 * group; i < 8 * group + 8; i += 2) {
      float p[2];
      TANDEM_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float score = state.acc_s[i + e];
        p[e] = ptx::ex2(ptx::fma(score, scale_log2, -lse.value[value_index(i + e)]));
        state.acc_s[i + e] = p[e];
        if (softcap) state.acc_s[i + e] = p[e] == 0.0f ? 0.0f : p[e] * ptx::fma(-score, score, 1.0f);
      }
      if constexpr (!Traits::kLateP) {
        state.frag_p[group][i / 2 % 4] = pack2<typename Traits::Element>(p[0], p[1]);
      }
    }
  }
}

// Where this thread writes dS^T of its warp's 16 keys, in panel `panel` of a buffer, with stmatrix: matrices 0, 1 are
// keys 0-7, 8-15 and 8 queries, 2, 3 the next 8 queries. 16 queries on are 16 rows.
template <typename Traits>
TANDEM_DEVICE uint32_t ds_address(int ds, int panel) {
  using DsTile = typename Traits::DsTile;
  const FragmentThread thread = place_of_thread<Traits>();
  return Traits::kSmemDs + static_cast<uint32_t>(ds) * DsTile::kBytes +
         static_cast<uint32_t>(panel) * DsTile::kPanelBytes +
         DsTile::chunk_offset(thread.lane / 16 * 8 + thread.lane % 8, thread.warp * 32 + thread.lane / 8 % 2 * 16);
}

// dS^T = P^T (dP^T - delta) to its buffer, as (queries, keys), for the products and for the other consumer.
template <typename Traits>
TANDEM_DEVICE void store_ds(BackwardState<Traits>& state, uint32_t delta_address, int ds, int w) {
  using DsTile = typename Traits::DsTile;
  using Element = typename Traits::Element;
  const uint32_t address = ds_address<Traits>(ds, w);
  TANDEM_UNROLL
  for (int group = 0; group < BackwardState<Traits>::kGroups; ++group) {
    if constexpr (Traits::kLateP) pack_a_fragment<Element>(state.frag_p[group], state.acc_s, group);
    const RowValues delta = values_of(state, delta_address, group);
    uint32_t packed[4];
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int i = 8 * group + 2 * r;
      packed[r] = pack2<Element>(state.acc_s[i] * (state.acc_dp[i] - delta.value[value_index(i)]),
                                 state.acc_s[i + 1] * (state.acc_dp[i + 1] - delta.value[value_index(i + 1)]));
    }
    ptx::stmatrix_x4_transposed(address + group * 16 * DsTile::kPanelRowBytes, packed);
  }
}

// A warp's 16 rows of a square of dQ on their way out: written in the order of dq_place(), sent by one lane, or, if the
// sums are to have an order, by the sender of dq_turns.cuh.
template <typename Traits>
TANDEM_DEVICE uint32_t dq_place_of_warp(int w, int warp) {
  return Traits::kSmemDq + static_cast<uint32_t>(w) * Traits::kDqSquareBytes +
         static_cast<uint32_t>(warp) * Traits::kDqWarpBytes;
}
// Until what lies there has been read. parity: of the number of squares that the consumer has staged so far.
template <typename Traits>
TANDEM_DEVICE void acquire_dq_place(const BackwardParams& params, int w, uint32_t parity) {
  if (TANDEM_UNLIKELY(is_deterministic(params))) ptx::mbarrier_wait(barrier_at(Traits::kDqEmpty, w), parity ^ 1);
  ptx::bulk_wait_read<0>();  // by lane 0, if it sent that itself
  ptx::warp_sync();
}
template <typename Traits>
TANDEM_DEVICE void stage_dq(BackwardState<Traits>& state, const BackwardParams& params, int w, uint32_t parity) {
  acquire_dq_place<Traits>(params, w, parity);
  const uint32_t address =
      dq_place_of_warp<Traits>(w, fragment_thread().warp) + static_cast<uint32_t>(place_of_thread<Traits>().lane) * 16;
  const float (&acc_dq)[32] = state.acc_dq();
  TANDEM_UNROLL
  for (int group = 0; group < 8; ++group) {
    ptx::store_shared(address + group * 512, RowValues{acc_dq[4 * group], acc_dq[4 * group + 1], acc_dq[4 * group + 2],
                                                       acc_dq[4 * group + 3]});
  }
}
// One thread; afterwards bulk_commit().
template <typename Traits>
TANDEM_DEVICE void add_dq_of_warp(const BackwardParams& params, int q_block, int square, int w, int warp) {
  uint32_t bytes = Traits::kDqWarpBytes;
  uint32_t staged = dq_place_of_warp<Traits>(w, warp);
  if (Traits::kDqSquaresOverlap && square == 1) {
    bytes /= 2;
    staged += bytes;
  }
  const uint32_t part = static_cast<uint32_t>(square) * Traits::kDqSquareBytes + static_cast<uint32_t>(warp) * bytes;
  ptx::bulk_reduce_add_f32(params.dq + (int64_t{q_block} * Traits::kDqBytes + part) / 4, staged, bytes);
}
// A whole warp, after fence_proxy_async_shared() by every lane. PERF: the arrival is predicated, not branched to: ptxas
// spills at headdim 256 otherwise, or serializes products at 64.
template <typename Traits>
TANDEM_DEVICE void send_dq(const BackwardParams& params, int q_block, int square, int w) {
  ptx::warp_sync();
  if (ptx::lane_index() != 0) return;
  if (!is_deterministic(params)) {
    add_dq_of_warp<Traits>(params, q_block, square, w, fragment_thread().warp);
    ptx::bulk_commit();
  }
  ptx::mbarrier_arrive_if(barrier_at(Traits::kDqFull, w), is_deterministic(params));
}
// Where the dQ of the step lies whose Q is in stage q.
template <typename Traits>
TANDEM_DEVICE int q_block_of_stage(int q) {
  return ptx::load_shared<int>(step_address<Traits>(q));
}

}  // namespace tandem::sm90
