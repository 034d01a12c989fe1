#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/quantize/params.h"
#include "sm90/quantize/tiles.h"
#include "sm90/quantize/work.cuh"
#include "sm90/tile/unpack.cuh"

// 8 elements of a row as the wide kernels read and write them: 16 bytes in, 8 out.
namespace tandem::sm90 {

// An instance of a wide kernel: of a row of kQuantizeTiles.
template <typename ElementType, int kRow>
struct QuantizeTraits {
  using Element = ElementType;
  static constexpr int kHeadDim = kQuantizeTiles[kRow].headdim;
  static constexpr int kLanes = kQuantizeTiles[kRow].lanes;
  static constexpr int kChunks = kQuantizeTiles[kRow].chunks;
  static constexpr int kThreads = quantize_threads(kQuantizeTiles[kRow]);
  static constexpr int kRowsAtOnce = kQuantizeRows / kRowsOfThread;  // of the block
  static_assert(kHeadDim == 8 * kLanes * kChunks);
};

struct Chunk {
  uint32_t word[4];
};
struct RoundedChunk {
  uint32_t word[2];
};

// Column of the thread's chunk number i.
template <typename Traits>
TANDEM_DEVICE int chunk_column(int i) {
  return 8 * (ptx::thread_rank_anew() % Traits::kLanes + Traits::kLanes * i);
}

TANDEM_DEVICE Chunk load_chunk(const Tensor& x, int64_t element) {
  return ptx::load_global(reinterpret_cast<const Chunk*>(static_cast<const uint16_t*>(x.data) + element));
}

// The thread's chunks of a row; of rows that do not count, and of columns past the last, zeros.
template <typename Traits>
TANDEM_DEVICE void load_chunks(const QuantizeParams& params, const QuantizeItem& item, int row,
                               Chunk (&chunks)[Traits::kChunks]) {
  const int64_t element = item.x + row * params.x.row_stride;
  TANDEM_UNROLL
  for (int i = 0; i < Traits::kChunks; ++i) {
    const int column = chunk_column<Traits>(i);
    chunks[i] = Chunk{};
    if (row < item.used && column < params.headdim) chunks[i] = load_chunk(params.x, element + column);
  }
}

template <typename Element>
TANDEM_DEVICE void unpack(const Chunk& chunk, float* values) {
  TANDEM_UNROLL
  for (int w = 0; w < 4; ++w) {
    values[2 * w] = low_half<Element>(chunk.word[w]);
    values[2 * w + 1] = high_half<Element>(chunk.word[w]);
  }
}

// A NaN counts for nothing.
template <int kCount>
TANDEM_DEVICE float largest_magnitude(const float (&values)[kCount]) {
  float largest = 0;
  TANDEM_UNROLL
  for (int i = 0; i < kCount; ++i) largest = ptx::max(largest, fabsf(values[i]));
  return largest;
}

// Infinities become NaN, which they are to be rounded to. Returns the largest magnitude of what is left.
template <int kCount>
TANDEM_DEVICE float drop_infinities(float (&values)[kCount]) {
  float largest = largest_magnitude(values);
  if (TANDEM_UNLIKELY(largest == INFINITY)) {
    TANDEM_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = fabsf(values[i]) == INFINITY ? NAN : values[i];
    largest = largest_magnitude(values);
  }
  return largest;
}

TANDEM_DEVICE RoundedChunk round_chunk(const float* values, float inverse) {
  return {ptx::pack_e4m3x4(values[0] * inverse, values[1] * inverse, values[2] * inverse, values[3] * inverse),
          ptx::pack_e4m3x4(values[4] * inverse, values[5] * inverse, values[6] * inverse, values[7] * inverse)};
}

// A row that the buffer has and that does not count becomes 0.
TANDEM_DEVICE void store_chunk(const QuantizeParams& params, const QuantizeItem& item, int row, int column,
                               const RoundedChunk& chunk) {
  if (row >= item.rows || column >= params.headdim) return;
  auto* const target = static_cast<uint8_t*>(params.out.data) + item.out + row * params.out.row_stride + column;
  ptx::store_global(reinterpret_cast<RoundedChunk*>(target), row < item.used ? chunk : RoundedChunk{});
}

}  // namespace tandem::sm90
