#pragma once

#include <cstdint>

#include "sm90/quantize/tiles.h"

// How much shared memory the quantising kernels take, and where what lies in that of the one that turns rows. Each
// begins with a word for each warp, 64 bytes.
namespace tandem::sm90 {

constexpr uint32_t narrow_smem_bytes(int headdim) {
  return 64 + static_cast<uint32_t>(128 * headdim) * 4;
}
constexpr uint32_t transposed_smem_bytes(const QuantizeTiles& tiles) {
  return 64 + static_cast<uint32_t>(128 * tiles.headdim);
}

constexpr uint32_t kTurnedMaxima = 1024;                 // kDynamicSharedBase: a word for each warp
constexpr uint32_t kTurnedFactors = kTurnedMaxima + 64;  // of each column, where rows are rotated

// Rows of all threads but the last of each; where the matrix has a factor of 12, one more is for the exchange.
constexpr int parked_rows(const QuantizeTiles& tiles) {
  return kRowsOfThread - (tiles.headdim % 3 == 0 ? 0 : 1);
}
constexpr uint32_t turned_smem_bytes(const QuantizeTiles& tiles) {
  const int values = parked_rows(tiles) * 8 * tiles.chunks * quantize_threads(tiles);
  return 64 + static_cast<uint32_t>(tiles.headdim + values) * 4;
}

template <typename Traits, bool kRotary = false>
struct TurnedSmem {
  static constexpr uint32_t kParked = kTurnedFactors + Traits::kHeadDim * 4;
  // In place of row number kRowsOfThread - 1.
  static constexpr uint32_t kExchange = kParked + (kRowsOfThread - 1) * 8 * Traits::kChunks * Traits::kThreads * 4;
  // What shared memory and registers allow. Rotary embeddings take 128 registers, rotations 80.
  static constexpr int kThreadsOnSm = kRotary || Traits::kHeadDim % 3 == 0 ? 512 : 768;
  static constexpr int kBlocksOnSm = kThreadsOnSm / Traits::kThreads;
};

}  // namespace tandem::sm90
