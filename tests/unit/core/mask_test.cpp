// Exhaustive tests of the mask arithmetic on small shapes, against the contract's sentence [3].

#include "core/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "core/block_range.h"

namespace tandem {
namespace {

constexpr int64_t kMaxLength = 9;

int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && a < 0 ? 1 : 0);
}

// "Row i stands at key position i + d; causal sees j <= i + d, a window i + d - left <= j <= i + d + right,
// attention_chunk = C the keys of the chunk of C that holds position i + d, number floor((i + d) / C)."
bool visible(const MaskSpec& mask, int64_t i, int64_t j, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t position = i + (mask.top_left ? 0 : seqlen_k - seqlen_q);
  if (j < 0 || j >= seqlen_k) return false;
  if (mask.causal && j > position) return false;
  if (mask.window_left >= 0 && j < position - mask.window_left) return false;
  if (mask.window_right >= 0 && j > position + mask.window_right) return false;
  if (mask.attention_chunk > 0 && floor_div(j, mask.attention_chunk) != floor_div(position, mask.attention_chunk)) {
    return false;
  }
  return true;
}

std::string describe(const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
  std::ostringstream text;
  text << "seqlen_q " << seqlen_q << ", seqlen_k " << seqlen_k << ", causal " << mask.causal << ", top_left "
       << mask.top_left << ", window (" << mask.window_left << ", " << mask.window_right << "), chunk "
       << mask.attention_chunk;
  return text.str();
}

template <typename Function>
void for_each_mask(Function function) {
  for (bool causal : {false, true}) {
    for (bool top_left : {false, true}) {
      for (int64_t left = -1; left <= 5; ++left) {
        for (int64_t right = -1; right <= 5; ++right) {
          for (int64_t chunk = 0; chunk <= 5; ++chunk) {
            MaskSpec mask;
            mask.causal = causal;
            mask.top_left = top_left;
            mask.window_left = left;
            mask.window_right = right;
            mask.attention_chunk = chunk;
            function(mask);
          }
        }
      }
    }
  }
}

// Calls function(mask, seqlen_q, seqlen_k) for every combination until one fails.
template <typename Function>
void for_each_problem(Function function) {
  for_each_mask([&](const MaskSpec& mask) {
    for (int64_t seqlen_q = 0; seqlen_q <= kMaxLength; ++seqlen_q) {
      for (int64_t seqlen_k = 0; seqlen_k <= kMaxLength; ++seqlen_k) {
        if (::testing::Test::HasFailure()) return;
        SCOPED_TRACE(describe(mask, seqlen_q, seqlen_k));
        function(mask, seqlen_q, seqlen_k);
      }
    }
  });
}

TEST(Mask, RowIntervalIsTheVisibleKeys) {
  for_each_problem([](const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
    for (int64_t i = 0; i < seqlen_q; ++i) {
      const RowInterval interval = row_interval(mask, i, seqlen_q, seqlen_k);
      for (int64_t j = -2; j < seqlen_k + 2; ++j) {
        ASSERT_EQ(interval.lo <= j && j < interval.hi, visible(mask, i, j, seqlen_q, seqlen_k)) << i << ", " << j;
      }
      if (interval.empty()) {
        ASSERT_EQ(interval, RowInterval{});
      }
    }
  });
}

TEST(Mask, IntersectClampsAndNormalises) {
  EXPECT_EQ(intersect(RowInterval{2, 7}, 3, 5), (RowInterval{3, 5}));
  EXPECT_EQ(intersect(RowInterval{2, 7}, -9, INT64_MAX), (RowInterval{2, 7}));
  EXPECT_EQ(intersect(RowInterval{2, 7}, 7, 9), (RowInterval{0, 0}));
  EXPECT_EQ(intersect(RowInterval{2, 7}, 5, 3), (RowInterval{0, 0}));
  EXPECT_EQ(intersect(RowInterval{0, 0}, 0, 9), (RowInterval{0, 0}));
}

// How many of a tile's (row, key) pairs are visible, over the rows that exist.
struct TileCount {
  int64_t visible = 0;
  int64_t rows = 0;
  int64_t pairs = 0;  // rows times all keys of the tile, those past seqlen_k included
};

TileCount count_tile(const MaskSpec& mask, int64_t row_begin, int64_t row_end, int64_t key_begin, int64_t key_end,
                     int64_t seqlen_q, int64_t seqlen_k) {
  TileCount count;
  count.rows = std::max<int64_t>(0, std::min(row_end, seqlen_q) - row_begin);
  count.pairs = count.rows * (key_end - key_begin);
  for (int64_t i = row_begin; i < row_begin + count.rows; ++i) {
    for (int64_t j = key_begin; j < key_end; ++j) count.visible += visible(mask, i, j, seqlen_q, seqlen_k);
  }
  return count;
}

TileKind kind_of(const TileCount& count) {
  if (count.visible == 0) return TileKind::kSkip;
  return count.visible == count.pairs ? TileKind::kFull : TileKind::kPartial;
}

TEST(Mask, TileBoundsEqualTheRowsTaken) {
  for_each_problem([](const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
    for (int64_t begin = 0; begin <= seqlen_q; ++begin) {
      for (int64_t end = begin; end <= seqlen_q + 2; ++end) {
        TileBounds expected;
        for (int64_t i = begin; i < std::min(end, seqlen_q); ++i) {
          include(expected, row_interval(mask, i, seqlen_q, seqlen_k));
        }
        const TileBounds bounds = tile_bounds(mask, begin, end, seqlen_q, seqlen_k);
        ASSERT_EQ(bounds.any_visible, expected.any_visible) << begin << ", " << end;
        ASSERT_EQ(bounds.has_empty, expected.has_empty) << begin << ", " << end;
        ASSERT_EQ(bounds.min_lo, expected.min_lo) << begin << ", " << end;
        ASSERT_EQ(bounds.max_lo, expected.max_lo) << begin << ", " << end;
        ASSERT_EQ(bounds.min_hi, expected.min_hi) << begin << ", " << end;
        ASSERT_EQ(bounds.max_hi, expected.max_hi) << begin << ", " << end;
      }
    }
  });
}

TEST(BlockRange, TilesAreClassifiedExactly) {
  for_each_problem([](const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
    for (int64_t block_m : {1, 2, 3, 4, 5}) {
      for (int64_t block_n : {1, 2, 3, 4, 5}) {
        for (int64_t row = 0; row < seqlen_q; row += block_m) {
          const TileBounds bounds = tile_bounds(mask, row, row + block_m, seqlen_q, seqlen_k);
          const BlockRange range = block_range(bounds, block_n);
          ASSERT_TRUE(range.empty() || (range.begin <= range.full_begin && range.full_begin <= range.full_end &&
                                        range.full_end <= range.end));
          for (int64_t key = 0; key < seqlen_k; key += block_n) {
            const TileKind expected =
                kind_of(count_tile(mask, row, row + block_m, key, key + block_n, seqlen_q, seqlen_k));
            ASSERT_EQ(classify_tile(bounds, key, key + block_n), expected) << row << ", " << key;
            const int64_t n_block = key / block_n;
            const bool visited = range.begin <= n_block && n_block < range.end;
            const bool full = range.full_begin <= n_block && n_block < range.full_end;
            ASSERT_EQ(visited, expected != TileKind::kSkip)
                << row << ", " << key << ", tile " << block_m << "x" << block_n;
            ASSERT_EQ(full, expected == TileKind::kFull)
                << row << ", " << key << ", tile " << block_m << "x" << block_n;
          }
        }
      }
    }
  });
}

TEST(BlockRange, MBlocksOfAKeyBlockAreClassifiedExactly) {
  for_each_problem([](const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
    for (int64_t block_n : {1, 2, 3, 4, 5}) {
      for (int64_t key = 0; key < seqlen_k; key += block_n) {
        const RowRange rows = row_range(mask, key, key + block_n, seqlen_q, seqlen_k);
        const RowRange full_rows = full_row_range(mask, key, key + block_n, seqlen_q, seqlen_k);
        for (int64_t i = 0; i < seqlen_q; ++i) {
          const TileKind kind = kind_of(count_tile(mask, i, i + 1, key, key + block_n, seqlen_q, seqlen_k));
          ASSERT_EQ(rows.begin <= i && i < rows.end, kind != TileKind::kSkip) << i << ", " << key;
          ASSERT_EQ(full_rows.begin <= i && i < full_rows.end, kind == TileKind::kFull) << i << ", " << key;
        }
        for (int64_t block_m : {1, 2, 3, 4, 5}) {
          const BlockRange range = m_block_range(mask, key, key + block_n, seqlen_q, seqlen_k, block_m);
          for (int64_t row = 0; row < seqlen_q; row += block_m) {
            const TileKind kind = kind_of(count_tile(mask, row, row + block_m, key, key + block_n, seqlen_q, seqlen_k));
            const int64_t m_block = row / block_m;
            ASSERT_EQ(range.begin <= m_block && m_block < range.end, kind != TileKind::kSkip) << row << ", " << key;
            ASSERT_EQ(range.full_begin <= m_block && m_block < range.full_end, kind == TileKind::kFull)
                << row << ", " << key << ", tile " << block_m << "x" << block_n;
          }
        }
      }
    }
  });
}

// Rows of arbitrary intervals: a skipped tile shows nothing, a full one everything.
TEST(BlockRange, IntervalArraysAreNeverSkippedOrFullByMistake) {
  constexpr int64_t kKeys = 5;
  std::vector<RowInterval> all;
  for (int64_t lo = 0; lo <= kKeys; ++lo) {
    for (int64_t hi = 0; hi <= kKeys; ++hi) all.push_back(intersect(RowInterval{0, kKeys}, lo, hi));
  }
  for (const RowInterval& a : all) {
    for (const RowInterval& b : all) {
      TileBounds bounds;
      include(bounds, a);
      include(bounds, b);
      EXPECT_EQ(bounds.has_empty, a.empty() || b.empty());
      for (int64_t block_n : {1, 2, 3}) {
        const BlockRange range = block_range(bounds, block_n);
        for (int64_t key = 0; key < kKeys; key += block_n) {
          int64_t seen = 0;
          for (int64_t j = key; j < key + block_n; ++j) seen += (a.lo <= j && j < a.hi) + (b.lo <= j && j < b.hi);
          const TileKind kind = classify_tile(bounds, key, key + block_n);
          if (kind == TileKind::kSkip) {
            EXPECT_EQ(seen, 0);
          }
          EXPECT_EQ(kind == TileKind::kFull, seen == 2 * block_n);
          EXPECT_EQ(kind != TileKind::kSkip, range.begin <= key / block_n && key / block_n < range.end);
          EXPECT_EQ(kind == TileKind::kFull, range.full_begin <= key / block_n && key / block_n < range.full_end);
        }
      }
    }
  }
}

// Windows and chunks up to INT64_MAX, lengths up to 2^62: closed forms whose exact value does not fit into int64_t on
// the way. Wider than everything means open.
TEST(Mask, HugeValuesSaturate) {
  constexpr int64_t kHuge = INT64_MAX;
  constexpr int64_t kLong = int64_t{1} << 62;
  for (const auto& [seqlen_q, seqlen_k] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 5}, {5, 3}, {kLong, 7}, {7, kLong}, {kLong, kLong}, {kHuge, 1}, {1, kHuge}}) {
    for (bool top_left : {false, true}) {
      MaskSpec mask;
      mask.top_left = top_left;
      mask.window_left = kHuge;
      mask.window_right = kHuge;
      SCOPED_TRACE(describe(mask, seqlen_q, seqlen_k));
      for (int64_t row : {int64_t{0}, seqlen_q / 2, seqlen_q - 1}) {
        EXPECT_EQ(row_interval(mask, row, seqlen_q, seqlen_k), (RowInterval{0, seqlen_k}));
      }
      EXPECT_EQ(row_range(mask, 0, seqlen_k, seqlen_q, seqlen_k), (RowRange{0, seqlen_q}));
      EXPECT_EQ(full_row_range(mask, 0, seqlen_k, seqlen_q, seqlen_k), (RowRange{0, seqlen_q}));
      const BlockRange blocks = block_range(tile_bounds(mask, 0, 64, seqlen_q, seqlen_k), 128);
      EXPECT_EQ(blocks.end, ceil_div(seqlen_k, 128));

      mask.window_left = mask.window_right = -1;
      mask.attention_chunk = kHuge;
      const int64_t last = row_interval(mask, seqlen_q - 1, seqlen_q, seqlen_k).hi;
      EXPECT_EQ(last, seqlen_k);  // the last row stands at a position >= 0, in chunk 0, which holds every key
      const int64_t d = top_left ? 0 : seqlen_k - seqlen_q;
      EXPECT_EQ(row_range(mask, 0, seqlen_k, seqlen_q, seqlen_k), (RowRange{std::max<int64_t>(0, -d), seqlen_q}));
    }
  }
}

constexpr MaskSpec kCausal{true, false, -1, -1, 0};
static_assert(row_interval(kCausal, 3, 5, 2) == RowInterval{0, 1}, "usable at compile time (C01)");
static_assert(row_interval(kCausal, 2, 5, 2) == RowInterval{}, "rows above the diagonal see nothing (C01)");
static_assert(tile_bounds(kCausal, 0, 4, 8, 8).max_hi == 4, "usable at compile time");

// Kernels do the same in 32 bits.
TEST(Mask32, AgreesWithMask64) {
  for (const bool top_left : {false, true}) {
    for (const int left : {-1, 0, 3, 1 << 29}) {
      for (const int right : {-1, 0, 2, 1 << 29}) {
        for (const int chunk : {0, 1, 5, 1 << 29}) {
          const MaskSpec wide{false, top_left, left, right, chunk};
          const BasicMaskSpec<int> narrow{false, top_left, left, right, chunk};
          for (const int seqlen_q : {0, 1, 7, 16}) {
            for (const int seqlen_k : {0, 1, 9, 16}) {
              for (int row = 0; row < seqlen_q; ++row) {
                const RowInterval expected = row_interval(wide, row, seqlen_q, seqlen_k);
                const BasicRowInterval<int> interval = row_interval(narrow, row, seqlen_q, seqlen_k);
                EXPECT_TRUE(interval.lo == expected.lo && interval.hi == expected.hi);
                const TileBounds bounds = tile_bounds(wide, row, row + 4, seqlen_q, seqlen_k);
                const BasicTileBounds<int> tile = tile_bounds(narrow, row, row + 4, seqlen_q, seqlen_k);
                EXPECT_TRUE(tile.min_lo == bounds.min_lo && tile.max_lo == bounds.max_lo);
                EXPECT_TRUE(tile.min_hi == bounds.min_hi && tile.max_hi == bounds.max_hi);
                EXPECT_TRUE(tile.any_visible == bounds.any_visible && tile.has_empty == bounds.has_empty);
              }
            }
          }
        }
      }
    }
  }
}

// The band is what masks without chunks are to the kernels.
TEST(Band, ShowsARowWhatItsMaskDoes) {
  for (const bool causal : {false, true}) {
    for (const bool top_left : {false, true}) {
      for (const int left : {-1, 0, 3, 40, 1 << 29}) {
        for (const int right : {-1, 0, 2, 40, 1 << 29}) {
          const BasicMaskSpec<int> mask{causal, top_left, left, right, 0};
          const BandMask band = band_mask(mask);
          for (const int seqlen_q : {1, 7, 16, 30}) {
            for (const int seqlen_k : {0, 1, 9, 16, 30}) {
              for (int row = 0; row < seqlen_q; ++row) {
                const BasicRowInterval<int> expected = row_interval(mask, row, seqlen_q, seqlen_k);
                const BasicRowInterval<int> interval = band_interval(band, row, seqlen_q, seqlen_k);
                EXPECT_EQ(interval.lo == interval.hi, expected.empty());
                EXPECT_TRUE(0 <= interval.lo && interval.hi <= seqlen_k);
                EXPECT_TRUE(expected.empty() || interval == expected);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Band, BoundsTilesAsItsMaskDoes) {
  for (const bool top_left : {false, true}) {
    for (const int left : {-1, 0, 3, 40}) {
      for (const int right : {-1, 0, 2, 40}) {
        const BasicMaskSpec<int> mask{false, top_left, left, right, 0};
        const BandMask band = band_mask(mask);
        for (const int seqlen_q : {1, 7, 16, 30}) {
          for (const int seqlen_k : {0, 1, 9, 16, 30}) {
            for (int row = 0; row < seqlen_q + 4; ++row) {
              const BasicTileBounds<int> expected = tile_bounds(mask, row, row + 4, seqlen_q, seqlen_k);
              const BasicTileBounds<int> bounds = band_bounds(band, row, row + 4, seqlen_q, seqlen_k);
              EXPECT_EQ(bounds.any_visible, expected.any_visible);
              EXPECT_EQ(bounds.has_empty, expected.has_empty);
              EXPECT_TRUE(bounds.min_lo == expected.min_lo && bounds.max_hi == expected.max_hi);
              if (expected.has_empty) continue;
              EXPECT_TRUE(bounds.max_lo == expected.max_lo && bounds.min_hi == expected.min_hi);
            }
          }
        }
      }
    }
  }
}

// The longest sequences that the kernels take, and windows as wide.
TEST(Band, DoesNotOverflow) {
  constexpr int kLongest = 1 << 29;
  const BandMask band = band_mask({false, false, kLongest, kLongest, 0});
  EXPECT_TRUE(band_interval(band, kLongest - 1, kLongest, kLongest) == (BasicRowInterval<int>{0, kLongest}));
  EXPECT_TRUE(band_interval(BandMask{}, kLongest - 1, kLongest, kLongest) == (BasicRowInterval<int>{0, kLongest}));
  EXPECT_TRUE(band_interval(BandMask{}, 0, kLongest, 1) == (BasicRowInterval<int>{0, 1}));
}

}  // namespace
}  // namespace tandem
