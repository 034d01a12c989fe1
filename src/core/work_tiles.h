#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/int_math.h"
#include "core/mask.h"

// The order in which tiles of work are handed out. Pure functions of the index: whoever asks, a CPU thread or a
// persistent thread block, gets the same tile for the same index.
namespace tandem {

// One m_block of one query head of one sequence.
struct WorkTile {
  int64_t m_block = 0;
  int64_t head = 0;
  int64_t batch = 0;
};

// Heads are taken in groups whose keys and values fit into the cache together (about 32 of them in a GPU's L2); inside
// a group, m_block by m_block over all heads. `longest_first` runs the m_blocks from the last to the first: where late
// rows see more keys, the long tiles then start first and the short ones fill the gaps at the end.
struct WorkOrder {
  int64_t head_group = 1;
  bool longest_first = false;
};

// Do late rows of this mask see more keys than early ones?
TANDEM_HD constexpr bool late_rows_are_longer(const MaskSpec& mask) {
  return mask.causal || mask.window_right >= 0;
}

// Dense: every sequence has m_blocks of them; indices run from 0 to m_blocks * nheads * batch. Groups run over the
// heads of all sequences, batch-major; the last may be smaller.
TANDEM_HD constexpr WorkTile work_tile(int64_t index, int64_t m_blocks, int64_t nheads, int64_t batch,
                                       WorkOrder order) {
  const int64_t tiles_per_group = m_blocks * order.head_group;
  const int64_t group_begin = index / tiles_per_group * order.head_group;
  const int64_t group_size = min_of(order.head_group, nheads * batch - group_begin);
  const int64_t in_group = index % tiles_per_group;
  const int64_t step = in_group / group_size;
  const int64_t head = group_begin + in_group % group_size;
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
