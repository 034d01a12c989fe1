#include "core/work_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "core/block_range.h"

namespace tandem {
namespace {

using Key = std::tuple<int64_t, int64_t, int64_t>;

Key key(const WorkTile& tile) {
  return {tile.batch, tile.head, tile.m_block};
}

TEST(WorkTiles, DenseOrderIsAPermutationByGroups) {
  for (int64_t m_blocks = 1; m_blocks <= 5; ++m_blocks) {
    for (int64_t nheads = 1; nheads <= 5; ++nheads) {
      for (int64_t batch = 1; batch <= 4; ++batch) {
        for (int64_t group : {1, 2, 3, 4, 7, 32}) {
          for (bool longest_first : {false, true}) {
            std::set<Key> seen;
            int64_t previous_group = 0;
            int64_t previous_block = -1;
            for (int64_t index = 0; index < m_blocks * nheads * batch; ++index) {
              const WorkTile tile = work_tile(index, m_blocks, nheads, batch, {group, longest_first});
              ASSERT_TRUE(0 <= tile.m_block && tile.m_block < m_blocks);
              ASSERT_TRUE(0 <= tile.head && tile.head < nheads);
              ASSERT_TRUE(0 <= tile.batch && tile.batch < batch);
              ASSERT_TRUE(seen.insert(key(tile)).second) << "tile handed out twice";
              const int64_t this_group = (tile.batch * nheads + tile.head) / group;
              ASSERT_GE(this_group, previous_group) << "a group is finished before the next begins";
              if (this_group == previous_group && previous_block >= 0) {
                ASSERT_TRUE(longest_first ? tile.m_block <= previous_block : tile.m_block >= previous_block);
              }
              previous_group = this_group;
              previous_block = tile.m_block;
            }
          }
        }
      }
    }
  }
}

TEST(WorkTiles, PackedOrderIsAPermutation) {
  const std::vector<std::vector<int32_t>> counts = {{1},       {0, 3},         {3, 0}, {0, 0, 2, 0, 1, 0},
                                                    {4, 1, 2}, {1, 1, 1, 1, 1}};
  for (const std::vector<int32_t>& blocks : counts) {
    std::vector<int32_t> prefix = {0};
    for (int32_t count : blocks) prefix.push_back(prefix.back() + count);
    const int64_t batch = static_cast<int64_t>(blocks.size());
    for (int64_t nheads = 1; nheads <= 5; ++nheads) {
      for (int64_t group : {1, 2, 3, 32}) {
        for (bool longest_first : {false, true}) {
          std::set<Key> seen;
          for (int64_t index = 0; index < prefix.back() * nheads; ++index) {
            const WorkTile tile = packed_work_tile(index, prefix.data(), nheads, batch, {group, longest_first});
            ASSERT_TRUE(0 <= tile.batch && tile.batch < batch);
            ASSERT_TRUE(0 <= tile.m_block && tile.m_block < blocks[static_cast<size_t>(tile.batch)]);
            ASSERT_TRUE(0 <= tile.head && tile.head < nheads);
            ASSERT_TRUE(seen.insert(key(tile)).second) << "tile handed out twice";
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
        for (int64_t index = 0; index < m_blocks * 3; ++index) {
          const int64_t row = work_tile(index, m_blocks, 3, 1, {3, true}).m_block * kBlockM;
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
        ASSERT_EQ(divisor.remainder(static_cast<uint32_t>(n)), static_cast<uint32_t>(n) % d) << n << " % " << d;
      }
    }
    ASSERT_EQ(divisor.quotient(kLargest), kLargest / d) << d;
  }
}

TEST(DenseWork, IsWorkTile) {
  for (int64_t m_blocks : {1, 2, 5}) {
    for (int64_t nheads : {1, 3, 8}) {
      for (int64_t batch : {1, 2, 7}) {
        for (int64_t group : {1, 2, 3, 32}) {
          for (bool longest_first : {false, true}) {
            const WorkOrder order{group, longest_first};
            const DenseWork work(m_blocks, nheads, batch, order);
            ASSERT_EQ(work.tiles, m_blocks * nheads * batch);
            for (int index = 0; index < work.tiles; ++index) {
              const WorkTile expected = work_tile(index, m_blocks, nheads, batch, order);
              const BasicWorkTile<int> tile = work.tile(index);
              EXPECT_EQ(tile.m_block, expected.m_block);
              EXPECT_EQ(tile.head, expected.head);
              EXPECT_EQ(tile.batch, expected.batch);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
