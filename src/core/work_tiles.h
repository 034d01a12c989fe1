#pragma once

#include <cstdint>

#include "core/divisor.h"
#include "core/host_device.h"
#include "core/int_math.h"
#include "core/mask.h"

// The order in which tiles of work are handed out. Pure functions of the index: whoever asks, a CPU thread or a
// persistent thread block, gets the same tile for the same index.
namespace tandem {

// One m_block of one query head of one sequence.
template <typename Int>
struct BasicWorkTile {
  Int m_block = 0;
  Int head = 0;
  Int batch = 0;
};

// Heads are taken in groups, which work on the same key blocks at about the same time; inside
// a group, m_block by m_block over all heads. `longest_first` runs the m_blocks from the last to the first: where late
// rows see more keys, the long tiles then start first and the short ones fill the gaps at the end.
struct WorkOrder {
  int64_t head_group = 1;
  bool longest_first = false;
};

// Do late rows of this mask see more keys than early ones?
template <typename Int>
TANDEM_HD constexpr bool late_rows_are_longer(const BasicMaskSpec<Int>& mask) {
  return mask.causal || mask.window_right >= 0;
}

// The order of work in one group after the other, by divisors that the host knows; fewer than 2^31 tiles. `heads`: of
// all sequences that share groups, of which the last may be smaller.
struct WorkGroups {
  Divisor heads_per_group, heads_in_last_group;
  int full_groups = 0;
  bool longest_first = false;

  constexpr WorkGroups() = default;
  constexpr WorkGroups(int64_t heads, WorkOrder order) : longest_first(order.longest_first) {
    const int64_t group = min_of(order.head_group, heads);
    const int64_t rest = heads % group;
    heads_per_group = Divisor(static_cast<uint32_t>(group));
    heads_in_last_group = Divisor(static_cast<uint32_t>(rest == 0 ? group : rest));
    full_groups = static_cast<int>(heads / group);
  }

  // Tile number `in_group` of group `group`; .head counts over all heads, .batch is 0.
  TANDEM_HD constexpr BasicWorkTile<int> tile(uint32_t group, uint32_t in_group, int m_blocks) const {
    const bool full = group < static_cast<uint32_t>(full_groups);
    const uint32_t step = full ? heads_per_group.quotient(in_group) : heads_in_last_group.quotient(in_group);
    const uint32_t size = full ? heads_per_group.divisor : heads_in_last_group.divisor;
    const uint32_t head = group * heads_per_group.divisor + in_group - step * size;
    return {longest_first ? m_blocks - 1 - static_cast<int>(step) : static_cast<int>(step), static_cast<int>(head), 0};
  }
};

// Dense: every sequence has m_blocks of them; indices run from 0 to m_blocks * nheads * batch. Groups run over the
// heads of all sequences, batch-major.
struct DenseWork {
  WorkGroups groups;
  Divisor nheads, tiles_per_group;
  int m_blocks = 0;
  int tiles = 0;

  constexpr DenseWork() = default;
  constexpr DenseWork(int64_t m_blocks_of_each, int64_t heads, int64_t batch, WorkOrder order)
      : groups(heads * batch, order),
        nheads(static_cast<uint32_t>(heads)),
        tiles_per_group(static_cast<uint32_t>(m_blocks_of_each * groups.heads_per_group.divisor)),
        m_blocks(static_cast<int>(m_blocks_of_each)),
        tiles(static_cast<int>(m_blocks_of_each * heads * batch)) {}

  TANDEM_HD constexpr BasicWorkTile<int> tile(int index) const {
    const uint32_t group = tiles_per_group.quotient(static_cast<uint32_t>(index));
    BasicWorkTile<int> work =
        groups.tile(group, static_cast<uint32_t>(index) - group * tiles_per_group.divisor, m_blocks);
    work.batch = static_cast<int>(nheads.quotient(static_cast<uint32_t>(work.head)));
    work.head -= work.batch * static_cast<int>(nheads.divisor);
    return work;
  }
};

// The largest s in [0, count) with prefix[s] <= value, given prefix[0] <= value < prefix[count] and a non-decreasing
// array: the sequence that m_block number `value` belongs to. Sequences without m_blocks are never returned.
template <typename Int>
TANDEM_HD constexpr int64_t find_sequence(const Int* prefix, int64_t count, int64_t value) {
  int64_t low = 0;
  int64_t high = count;  // prefix[low] <= value < prefix[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (prefix[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace tandem
