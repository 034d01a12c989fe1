#pragma once

#include <cmath>
#include <cstdint>

#include "core/fp8.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/quantize/chunks.cuh"
#include "sm90/quantize/hadamard.cuh"
#include "sm90/quantize/rotary.cuh"
#include "sm90/quantize/scale.cuh"
#include "sm90/quantize/smem.h"

// Quantises rows after a rotary embedding, a rotation, or both. What is to be rounded needs fp32, and a block of it
// more registers than there are: a thread parks all of its rows but the last in shared memory, at places that only it
// touches, until the block's scale is known.
//
//     row k: load | row k + 1: load | row k: turn, rotate, largest magnitude, park | ...
//     of the block -> scale -> round, store
//
// Where the scale is known before, rows are rounded as they come. Rows are rotated unless there is a rotary embedding
// (kRotary) and nothing else.
namespace tandem::sm90 {

static_assert(kTurnedMaxima == ptx::kDynamicSharedBase);

constexpr int kLastRow = kRowsOfThread - 1;  // of a thread

template <typename Traits>
using TurnedRow = float[Traits::kChunks * 8];

template <typename Traits>
TANDEM_DEVICE int turned_row(int k) {
  return ptx::thread_rank_anew() / Traits::kLanes + Traits::kRowsAtOnce * k;
}

// Vector v of the thread's row k. Threads side by side lie side by side.
template <typename Traits>
TANDEM_DEVICE uint32_t parked_vector(int k, int v) {
  const int vector = (k * 2 * Traits::kChunks + v) * Traits::kThreads + ptx::thread_rank_anew();
  return TurnedSmem<Traits>::kParked + static_cast<uint32_t>(vector) * 16;
}

template <typename Traits>
TANDEM_DEVICE void park_row(int k, const TurnedRow<Traits>& values) {
  TANDEM_UNROLL
  for (int v = 0; v < 2 * Traits::kChunks; ++v) {
    ptx::store_shared(parked_vector<Traits>(k, v),
                      FourFloats{values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3]});
  }
}

template <typename Traits>
TANDEM_DEVICE void fetch_row(int k, TurnedRow<Traits>& values) {
  TANDEM_UNROLL
  for (int v = 0; v < 2 * Traits::kChunks; ++v) {
    const auto four = ptx::load_shared<FourFloats>(parked_vector<Traits>(k, v));
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) values[4 * v + i] = four.value[i];
  }
}

template <typename Traits>
TANDEM_DEVICE void unpack_row(const Chunk (&chunks)[Traits::kChunks], TurnedRow<Traits>& values) {
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kChunks; ++i) unpack<typename Traits::Element>(chunks[i], values + 8 * i);
}

template <typename Traits, bool kRotary>
TANDEM_DEVICE void turn_row(const QuantizeParams& params, const QuantizeItem& item, int row,
                            TurnedRow<Traits>& values) {
  if constexpr (kRotary) {
    TANDEM_UNROLL
    for (int i = 0; i < Traits::kChunks; ++i) {
      if (row >= item.used) continue;
      turn_chunk<typename Traits::Element>(params, item, row, chunk_column<Traits>(i), values + 8 * i);
    }
  }
  if (!kRotary || params.rotate) rotate_row<Traits>(params.headdim, values);
}

template <typename Traits>
TANDEM_DEVICE void store_turned_row(const QuantizeParams& params, const QuantizeItem& item, int row,
                                    const TurnedRow<Traits>& values, float inverse) {
  if constexpr (Traits::kHeadDim % 3 == 0) {
    if (params.rotate) {
      store_twelves<Traits>(params, item, row, values, inverse);
      return;
    }
  }
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kChunks; ++i) {
    store_chunk(params, item, row, chunk_column<Traits>(i), round_chunk(values + 8 * i, inverse));
  }
}

// Where the scale is not known before, the last row is left in `values`, and the largest magnitude returned.
template <typename Traits, bool kRotary>
TANDEM_DEVICE float turn_rows(const QuantizeParams& params, const QuantizeItem& item, TurnedRow<Traits>& values) {
  const float inverse = item.is_known ? known_inverse(item) : 0.0f;
  float largest = 0;
  Chunk chunks[Traits::kChunks];
  load_chunks<Traits>(params, item, turned_row<Traits>(0), chunks);
  TANDEM_NO_UNROLL
  for (int k = 0; k < kRowsOfThread; ++k) {
    unpack_row<Traits>(chunks, values);
    if (k < kLastRow) load_chunks<Traits>(params, item, turned_row<Traits>(k + 1), chunks);
    turn_row<Traits, kRotary>(params, item, turned_row<Traits>(k), values);
    largest = ptx::max(largest, drop_infinities(values));
    if (item.is_known) {
      store_turned_row<Traits>(params, item, turned_row<Traits>(k), values, inverse);
    } else if (k < kLastRow) {
      park_row<Traits>(k, values);
    }
  }
  return largest;
}

template <typename Traits, bool kRotary>
TANDEM_DEVICE void quantize_turned_item(const QuantizeParams& params, const QuantizeItem& item) {
  TurnedRow<Traits> values;
  const float largest = turn_rows<Traits, kRotary>(params, item, values);
  if (item.is_known) return;
  const float inverse = find_inverse<Traits::kThreads>(params, item, largest, kTurnedMaxima);
  if (params.pass == QuantizePass::kLargest) return;
  TANDEM_NO_UNROLL
  for (int k = kLastRow; k >= 0; --k) {
    if (k < kLastRow) fetch_row<Traits>(k, values);
    store_turned_row<Traits>(params, item, turned_row<Traits>(k), values, inverse);
  }
}

template <typename Traits, bool kRotary>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Traits::kThreads, (TurnedSmem<Traits, kRotary>::kBlocksOnSm))
    quantize_turned_kernel(const TANDEM_GRID_CONSTANT QuantizeParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  if (params.rotate) write_factors<Traits>(params);
  ptx::launch_dependent_grid();
  ptx::wait_for_previous_grid();
  for_each_item(params, [&params](const QuantizeItem& item) { quantize_turned_item<Traits, kRotary>(params, item); });
}

}  // namespace tandem::sm90
