#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/fp8.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/quantize/chunks.cuh"
#include "sm90/quantize/scale.cuh"

// Quantises rows as they are: neither turned nor rotated. All that a thread reads is under way at once and stays in its
// registers, as 16 bits, from the largest magnitude to the rounding:
//
//     load 4 rows -> largest magnitude -> of the block -> scale -> round -> store
//
// With kTransposed it writes V^T in slots, through shared memory. There a thread's 4 rows are the keys of
// 4 slots side by side, so that each of its columns is a word of V^T.
namespace tandem::sm90 {

constexpr uint32_t kBlockMaxima = ptx::kDynamicSharedBase;  // a word for each warp, of 16 at most
constexpr uint32_t kSlotTile = kBlockMaxima + 64;           // (headdim, 128 slots), 16-byte units swizzled
constexpr uint32_t kMaximaBytes = 64;
constexpr int kSlotTileRowBytes = kQuantizeRows;

template <typename Traits>
struct PlainRows {
  Chunk chunk[kRowsOfThread][Traits::kChunks];
};

template <bool kTransposed>
TANDEM_DEVICE int plain_row(int first, int k) {
  return kTransposed ? slot_key(kRowsOfThread * first + k) : first + kQuantizeRows / kRowsOfThread * k;
}

template <typename Traits, bool kTransposed>
TANDEM_DEVICE void load_plain_rows(const QuantizeParams& params, const QuantizeItem& item, PlainRows<Traits>& rows) {
  const int first = ptx::thread_rank_anew() / Traits::kLanes;
  TANDEM_UNROLL
  for (int k = 0; k < kRowsOfThread; ++k) {
    load_chunks<Traits>(params, item, plain_row<kTransposed>(first, k), rows.chunk[k]);
  }
}

template <typename Traits>
TANDEM_DEVICE float largest_of_rows(const PlainRows<Traits>& rows) {
  float largest = 0;
  TANDEM_UNROLL
  for (int k = 0; k < kRowsOfThread; ++k) {
    TANDEM_UNROLL
    for (int i = 0; i < Traits::kChunks; ++i) {
      float values[8];
      unpack<typename Traits::Element>(rows.chunk[k][i], values);
      largest = ptx::max(largest, largest_magnitude(values));
    }
  }
  return largest;
}

// In the pair of elements, infinities become NaN.
template <typename Element>
TANDEM_DEVICE uint32_t without_infinities(uint32_t pair) {
  constexpr uint32_t kInfinity = std::is_same_v<Element, Bf16> ? 0x7f80u : 0x7c00u;
  if ((pair & 0x7fffu) == kInfinity) pair |= 1u;
  if ((pair >> 16 & 0x7fffu) == kInfinity) pair |= 1u << 16;
  return pair;
}

// As drop_infinities() of chunks.cuh, of values that stay packed.
template <typename Traits>
TANDEM_DEVICE float drop_infinities(PlainRows<Traits>& rows) {
  const float largest = largest_of_rows(rows);
  if (TANDEM_UNLIKELY(largest == INFINITY)) {
    TANDEM_UNROLL
    for (int k = 0; k < kRowsOfThread; ++k) {
      TANDEM_UNROLL
      for (int i = 0; i < 4 * Traits::kChunks; ++i) {
        uint32_t& word = rows.chunk[k][i / 4].word[i % 4];
        word = without_infinities<typename Traits::Element>(word);
      }
    }
    return largest_of_rows(rows);
  }
  return largest;
}

template <typename Traits>
TANDEM_DEVICE void store_plain_rows(const QuantizeParams& params, const QuantizeItem& item,
                                    const PlainRows<Traits>& rows, float inverse) {
  const int first = ptx::thread_rank_anew() / Traits::kLanes;
  TANDEM_UNROLL
  for (int k = 0; k < kRowsOfThread; ++k) {
    TANDEM_UNROLL
    for (int i = 0; i < Traits::kChunks; ++i) {
      float values[8];
      unpack<typename Traits::Element>(rows.chunk[k][i], values);
      store_chunk(params, item, plain_row<false>(first, k), chunk_column<Traits>(i), round_chunk(values, inverse));
    }
  }
}

// Where the 16 slots number `group` of a column lie in the tile. Lanes side by side hold columns 8 apart, whose words
// fall on different banks by the swizzle.
TANDEM_DEVICE uint32_t slot_unit(int column, int group) {
  return kSlotTile + static_cast<uint32_t>(column * kSlotTileRowBytes + (group ^ column / 8 % 8) * 16);
}

// A word of 4 slots for each of the thread's columns.
template <typename Traits>
TANDEM_DEVICE void write_slot_tile(const PlainRows<Traits>& rows, float inverse) {
  const int word = ptx::thread_rank_anew() / Traits::kLanes;  // of the 32 of a column
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kChunks; ++i) {
    TANDEM_UNROLL
    for (int w = 0; w < 4; ++w) {
      float low[kRowsOfThread], high[kRowsOfThread];
      TANDEM_UNROLL
      for (int k = 0; k < kRowsOfThread; ++k) {
        low[k] = low_half<typename Traits::Element>(rows.chunk[k][i].word[w]) * inverse;
        high[k] = high_half<typename Traits::Element>(rows.chunk[k][i].word[w]) * inverse;
      }
      const uint32_t unit = slot_unit(chunk_column<Traits>(i) + 2 * w, word / 4) + static_cast<uint32_t>(word % 4) * 4;
      ptx::store_shared(unit, ptx::pack_e4m3x4(low[0], low[1], low[2], low[3]));
      ptx::store_shared(unit + kSlotTileRowBytes, ptx::pack_e4m3x4(high[0], high[1], high[2], high[3]));
    }
  }
}

// 16 slots a thread; 8 threads side by side store a column's 128.
template <typename Traits>
TANDEM_DEVICE void store_slot_tile(const QuantizeParams& params, const QuantizeItem& item) {
  constexpr int kGroups = kQuantizeRows / static_cast<int>(kSlotGroup);
  const int group = ptx::thread_rank_anew() % kGroups;
  if (group * static_cast<int>(kSlotGroup) >= item.slots) return;
  const int last = params.headdim - 1;
  for (int column = ptx::thread_rank_anew() / kGroups; column <= last; column += Traits::kThreads / kGroups) {
    const auto slots = ptx::load_shared<Chunk>(slot_unit(column, group));
    auto* const target = static_cast<uint8_t*>(params.out.data) + item.out + column * params.out.row_stride +
                         group * static_cast<int>(kSlotGroup);
    ptx::store_global(reinterpret_cast<Chunk*>(target), slots);
  }
}

template <typename Traits, bool kTransposed>
TANDEM_DEVICE void quantize_plain_item(const QuantizeParams& params, const QuantizeItem& item) {
  PlainRows<Traits> rows;
  load_plain_rows<Traits, kTransposed>(params, item, rows);
  const float largest = drop_infinities(rows);
  const float inverse =
      item.is_known ? known_inverse(item) : find_inverse<Traits::kThreads>(params, item, largest, kBlockMaxima);
  if (params.pass == QuantizePass::kLargest) return;
  if constexpr (kTransposed) {
    write_slot_tile<Traits>(rows, inverse);
    ptx::block_sync();
    store_slot_tile<Traits>(params, item);
  } else {
    store_plain_rows<Traits>(params, item, rows, inverse);
  }
}

// 64 registers for each thread; where it holds 3 chunks of each row, 128.
template <typename Traits>
constexpr int kPlainBlocksOnSm = (Traits::kChunks == 2 ? 1024 : 512) / Traits::kThreads;

template <typename Traits, bool kTransposed>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Traits::kThreads, kPlainBlocksOnSm<Traits>)
    quantize_plain_kernel(const TANDEM_GRID_CONSTANT QuantizeParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  ptx::wait_for_previous_grid();
  for_each_item(params,
                [&params](const QuantizeItem& item) { quantize_plain_item<Traits, kTransposed>(params, item); });
}

}  // namespace tandem::sm90
