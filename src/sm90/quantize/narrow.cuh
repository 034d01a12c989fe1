#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"
#include "core/fp8.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/quantize/scale.cuh"
#include "sm90/quantize/tiles.h"
#include "sm90/tile/unpack.cuh"

// Quantises what the wide kernels cannot take: any headdim, strides and bases, Hadamard matrices and rotary tables, an
// element at a time. The block lies in shared memory in fp32, (128, headdim), and all threads take its steps together.
namespace tandem::sm90 {

constexpr uint32_t kNarrowMaxima = ptx::kDynamicSharedBase;
constexpr uint32_t kNarrowTile = kNarrowMaxima + 64;

// Element n of the tile.
TANDEM_DEVICE float load_value(int n) {
  return ptx::load_shared<float>(kNarrowTile + static_cast<uint32_t>(n) * 4);
}
TANDEM_DEVICE void store_value(int n, float value) {
  ptx::store_shared(kNarrowTile + static_cast<uint32_t>(n) * 4, value);
}

// visit(n) for each n below `count`, shared out among the threads; then all have.
template <typename Visit>
TANDEM_DEVICE void for_all(int count, const Visit& visit) {
  for (int n = ptx::thread_rank(); n < count; n += kNarrowThreads) visit(n);
  ptx::block_sync();
}

template <typename Element>
TANDEM_DEVICE float load_element(const void* data, int64_t element) {
  return low_half<Element>(ptx::load_global(static_cast<const uint16_t*>(data) + element));
}

template <typename Element>
TANDEM_DEVICE void load_narrow_rows(const QuantizeParams& params, const QuantizeItem& item) {
  for_all(item.used * params.headdim, [&](int n) {
    const int row = n / params.headdim;
    store_value(n, load_element<Element>(params.x.data, item.x + row * params.x.row_stride + n % params.headdim));
  });
}

template <typename Element>
TANDEM_DEVICE float table_value(const RotaryTable& table, int64_t position, int pair) {
  const int64_t element = position * table.position_stride + pair;
  if (table.dtype == DType::kFp32) return ptx::load_global(static_cast<const float*>(table.data) + element);
  return load_element<Element>(table.data, element);
}

template <typename Element>
TANDEM_DEVICE void turn_narrow_rows(const QuantizeParams& params, const QuantizeItem& item) {
  for_all(item.used * params.pairs, [&](int n) {
    const int row = n / params.pairs;
    const int pair = n % params.pairs;
    const int64_t position = table_position(params, item, row);
    const float cos = table_value<Element>(params.cos, position, pair);
    const float sin = table_value<Element>(params.sin, position, pair);
    const int first = row * params.headdim + (params.interleaved ? 2 * pair : pair);
    const int second = first + (params.interleaved ? 1 : params.pairs);
    const float a = load_value(first);
    const float b = load_value(second);
    store_value(first, a * cos - b * sin);
    store_value(second, a * sin + b * cos);
  });
}

TANDEM_DEVICE bool is_negative(const QuantizeParams& params, int column) {
  return (params.negative[column / 32] >> column % 32 & 1) != 0;
}

// a, b = a + b, a - b of all columns that lie `half` apart in the Sylvester part.
TANDEM_DEVICE void narrow_butterflies(int columns, int half) {
  for_all(columns / 2, [half](int n) {
    const int first = n / half * 2 * half + n % half;
    const float a = load_value(first);
    const float b = load_value(first + half);
    store_value(first, a + b);
    store_value(first + half, a - b);
  });
}

// Paley's matrix of 12 over columns that lie `size` apart.
TANDEM_DEVICE void narrow_twelves(int columns, int size) {
  for_all(columns / kHadamardBase, [size](int n) {
    const int first = n / size * kHadamardBase * size + n % size;
    float values[kHadamardBase];
    TANDEM_UNROLL
    for (int c = 0; c < kHadamardBase; ++c) values[c] = load_value(first + c * size);
    TANDEM_UNROLL
    for (int r = 0; r < kHadamardBase; ++r) {
      float sum = 0;
      TANDEM_UNROLL
      for (int c = 0; c < kHadamardBase; ++c) sum = paley12(r, c) > 0 ? sum + values[c] : sum - values[c];
      store_value(first + r * size, sum);
    }
  });
}

TANDEM_DEVICE void rotate_narrow_rows(const QuantizeParams& params, const QuantizeItem& item) {
  const int columns = item.used * params.headdim;  // of all rows: sizes divide the headdim
  for_all(columns, [&](int n) {
    const float factor = params.rotation_factor;
    store_value(n, load_value(n) * (is_negative(params, n % params.headdim) ? -factor : factor));
  });
  const auto size = static_cast<int>(sylvester_size(params.headdim));
  for (int half = 1; half < size; half *= 2) narrow_butterflies(columns, half);
  if (size != params.headdim) narrow_twelves(columns, size);
}

// As drop_infinities(), of the thread's part of the tile.
TANDEM_DEVICE float drop_narrow_infinities(int columns) {
  float largest = 0;
  for (int n = ptx::thread_rank(); n < columns; n += kNarrowThreads) {
    const float magnitude = fabsf(load_value(n));
    if (magnitude == INFINITY) {
      store_value(n, NAN);
    } else {
      largest = ptx::max(largest, magnitude);
    }
  }
  return largest;
}

// Of row `row` of the block, which may be none that counts.
TANDEM_DEVICE uint8_t rounded_value(const QuantizeParams& params, const QuantizeItem& item, int row, int column,
                                    float inverse) {
  if (row >= item.used) return 0;
  return static_cast<uint8_t>(ptx::pack_e4m3x4(load_value(row * params.headdim + column) * inverse, 0, 0, 0));
}

TANDEM_DEVICE void store_narrow_rows(const QuantizeParams& params, const QuantizeItem& item, float inverse) {
  auto* const out = static_cast<uint8_t*>(params.out.data);
  for_all(item.rows * params.headdim, [&](int n) {
    const int row = n / params.headdim;
    const int column = n % params.headdim;
    ptx::store_global(out + item.out + row * params.out.row_stride + column,
                      rounded_value(params, item, row, column, inverse));
  });
}

TANDEM_DEVICE void store_narrow_slots(const QuantizeParams& params, const QuantizeItem& item, float inverse) {
  auto* const out = static_cast<uint8_t*>(params.out.data);
  for_all(params.headdim * item.slots, [&](int n) {
    const int column = n / item.slots;
    const int slot = n % item.slots;
    ptx::store_global(out + item.out + column * params.out.row_stride + slot,
                      rounded_value(params, item, slot_key(slot), column, inverse));
  });
}

template <typename Element>
TANDEM_DEVICE void quantize_narrow_item(const QuantizeParams& params, const QuantizeItem& item) {
  load_narrow_rows<Element>(params, item);
  if (params.pairs > 0) turn_narrow_rows<Element>(params, item);
  if (params.rotate) rotate_narrow_rows(params, item);
  const float largest = drop_narrow_infinities(item.used * params.headdim);
  ptx::block_sync();
  const float inverse =
      item.is_known ? known_inverse(item) : find_inverse<kNarrowThreads>(params, item, largest, kNarrowMaxima);
  if (params.pass == QuantizePass::kLargest) return;
  if (params.transposed) {
    store_narrow_slots(params, item, inverse);
  } else {
    store_narrow_rows(params, item, inverse);
  }
}

template <typename Element>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kNarrowThreads, 1)
    quantize_narrow_kernel(const TANDEM_GRID_CONSTANT QuantizeParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  ptx::wait_for_previous_grid();
  for_each_item(params, [&params](const QuantizeItem& item) { quantize_narrow_item<Element>(params, item); });
}

}  // namespace tandem::sm90
