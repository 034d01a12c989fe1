#pragma once

#include <cstdint>

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
using WorkTile = BasicWorkTile<int64_t>;

// Heads are taken in groups whose keys and values fit into the cache together (about 32 of them in a GPU's L2); inside
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

// Dense: every sequence has m_blocks of them; indices run from 0 to m_blocks * nheads * batch. Groups run over the
// heads of all sequences, batch-major; the last may be smaller.
template <typename Int>
TANDEM_HD constexpr BasicWorkTile<Int> work_tile(Int index, Same<Int> m_blocks, Same<Int> nheads, Same<Int> batch,
                                                 WorkOrder order) {
  const Int head_group = static_cast<Int>(min_of(order.head_group, nheads * batch));
  const Int tiles_per_group = m_blocks * head_group;
  const Int group_begin = index / tiles_per_group * head_group;
  const Int group_size = min_of(head_group, nheads * batch - group_begin);
  const Int in_group = index % tiles_per_group;
  const Int step = in_group / group_size;
  const Int head = group_begin + in_group % group_size;
  return {order.longest_first ? m_blocks - 1 - step : step, head % nheads, head / nheads};
}

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

// Packed: sequence s has block_prefix[s + 1] - block_prefix[s] m_blocks (block_prefix: batch + 1 values from 0);
// indices run from 0 to block_prefix[batch] * nheads. Sequence by sequence, each in the dense order.
template <typename Int>
TANDEM_HD constexpr WorkTile packed_work_tile(int64_t index, const Int* block_prefix, int64_t nheads, int64_t batch,
                                              WorkOrder order) {
  const int64_t sequence = find_sequence(block_prefix, batch, index / nheads);
  const int64_t first_block = block_prefix[sequence];
  const int64_t m_blocks = block_prefix[sequence + 1] - first_block;
  WorkTile tile = work_tile(index - first_block * nheads, m_blocks, nheads, 1, order);
  tile.batch = sequence;
  return tile;
}

}  // namespace tandem
