#pragma once

namespace tandem::sm90 {

// How a thread block of the wide kernels holds 128 rows of a head. `lanes` threads share a row: thread l of them has
// the chunks of 8 columns number l, l + lanes, ... so that a warp's loads are whole runs. Each thread has 4 rows.
struct QuantizeTiles {
  int headdim;  // at most
  int lanes;
  int chunks;  // of a thread and row
};

constexpr QuantizeTiles kQuantizeTiles[] = {{64, 4, 2}, {96, 4, 3}, {128, 8, 2}, {192, 8, 3}, {256, 16, 2}};
constexpr int kQuantizeTilesCount = sizeof(kQuantizeTiles) / sizeof(kQuantizeTiles[0]);

constexpr int kRowsOfThread = 4;
constexpr int kNarrowThreads = 256;

constexpr int quantize_threads(const QuantizeTiles& tiles) {
  return 128 / kRowsOfThread * tiles.lanes;
}

}  // namespace tandem::sm90
