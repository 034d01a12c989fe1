#include "core/work_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/block_range.h"

namespace tandem {
namespace {

// Group by group, in each m_block by m_block over its heads.
std::vector<BasicWorkTile<int>> order_of_work(int m_blocks, int nheads, int batch, WorkOrder order) {
  std::vector<BasicWorkTile<int>> tiles;
  const int heads = nheads * batch;
  for (int begin = 0; begin < heads; begin += static_cast<int>(order.head_group)) {
    const int end = std::min(begin + static_cast<int>(order.head_group), heads);
    for (int step = 0; step < m_blocks; ++step) {
      const int m_block = order.longest_first ? m_blocks - 1 - step : step;
      for (int head = begin; head < end; ++head) tiles.push_back({m_block, head % nheads, head / nheads});
    }
  }
  return tiles;
}

TEST(DenseWork, GoesBlockByBlockThroughGroupsOfHeads) {
  for (int m_blocks : {1, 2, 3, 5}) {
    for (int nheads : {1, 3, 5, 8}) {
      for (int batch : {1, 2, 7}) {
        for (int64_t group : {1, 2, 3, 4, 32}) {
          for (bool longest_first : {false, true}) {
            const WorkOrder order{group, longest_first};
            const DenseWork work(m_blocks, nheads, batch, order);
            const std::vector<BasicWorkTile<int>> expected = order_of_work(m_blocks, nheads, batch, order);
            ASSERT_EQ(work.tiles, static_cast<int>(expected.size()));
            for (int index = 0; index < work.tiles; ++index) {
              const BasicWorkTile<int> tile = work.tile(index);
              EXPECT_EQ(tile.m_block, expected[static_cast<size_t>(index)].m_block);
              EXPECT_EQ(tile.head, expected[static_cast<size_t>(index)].head);
              EXPECT_EQ(tile.batch, expected[static_cast<size_t>(index)].batch);
            }
          }
        }
      }
    }
  }
}

// Within a group of heads no tile of a causal mask is longer than the one before it.
TEST(WorkTiles, LongestFirstHoldsForCausal) {
  constexpr int64_t kBlockM = 2;
  constexpr int64_t kBlockN = 3;
  for (bool top_left : {false, true}) {
    MaskSpec mask;
    mask.causal = true;
    mask.top_left = top_left;
    ASSERT_TRUE(late_rows_are_longer(mask));
    for (int64_t seqlen_q = 1; seqlen_q <= 12; ++seqlen_q) {
      for (int64_t seqlen_k = 0; seqlen_k <= 12; ++seqlen_k) {
        const int64_t m_blocks = ceil_div(seqlen_q, kBlockM);
        int64_t previous = INT64_MAX;
        const DenseWork work(m_blocks, 3, 1, {3, true});
        for (int index = 0; index < work.tiles; ++index) {
          const int64_t row = work.tile(index).m_block * kBlockM;
          const BlockRange range = block_range(tile_bounds(mask, row, row + kBlockM, seqlen_q, seqlen_k), kBlockN);
          ASSERT_LE(range.end - range.begin, previous) << seqlen_q << ", " << seqlen_k << ", index " << index;
          previous = range.end - range.begin;
        }
      }
    }
  }
}

TEST(WorkTiles, OrderOfMasksWithoutAGrowingSideIsForward) {
  EXPECT_FALSE(late_rows_are_longer(MaskSpec{}));
  MaskSpec left_only;
  left_only.window_left = 3;
  EXPECT_FALSE(late_rows_are_longer(left_only));
}

TEST(WorkTiles, SearchSkipsEmptySequences) {
  const int64_t prefix[] = {0, 0, 2, 2, 2, 5, 5};
  const int64_t expected[] = {1, 1, 4, 4, 4};
  for (int64_t value = 0; value < 5; ++value) EXPECT_EQ(find_sequence(prefix, 6, value), expected[value]);
}

// Every remainder near multiples of the divisor, up to the largest number.
TEST(Divisor, DividesAsDivisionDoes) {
  constexpr uint32_t kLargest = INT32_MAX;
  std::vector<uint32_t> divisors;
  for (uint32_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (uint32_t power = 512; power != 0 && power <= (kLargest >> 1) + 1; power *= 2) {
    for (uint32_t d : {power - 1, power, power + 1}) divisors.push_back(d);
  }
  divisors.push_back(1000003);
  divisors.push_back(kLargest);
  for (const uint32_t d : divisors) {
    const Divisor divisor(d);
    for (uint64_t multiple = 0; multiple <= kLargest; multiple += std::max<uint64_t>(d, kLargest / 5000 / d * d)) {
      for (const int64_t n :
           {static_cast<int64_t>(multiple) - 1, static_cast<int64_t>(multiple), static_cast<int64_t>(multiple) + 1}) {
        if (n < 0 || n > kLargest) continue;
        ASSERT_EQ(divisor.quotient(static_cast<uint32_t>(n)), static_cast<uint32_t>(n) / d) << n << " / " << d;
      }
    }
    ASSERT_EQ(divisor.quotient(kLargest), kLargest / d) << d;
  }
}

}  // namespace
}  // namespace tandem
