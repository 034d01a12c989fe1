#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/backward/q_blocks.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"

// Which rows a thread block of the kernels before and after the backward kernel works on: one q_block.
namespace tandem::sm90 {

struct QBlock {
  int index;      // of all q_blocks
  int q_begin;    // the sequence's first row in the buffer
  int first_row;  // of the m_block, in its sequence
  int q_rows;     // of the buffer that the sequence owns
  int q_len;      // used
  int k_len;      // used
  int head;
  int batch;  // 0 in a packed problem, whose rows count from the start of the buffer
};

TANDEM_DEVICE int used_of_entry(const DeviceVector& seqused, int batch, int length) {
  if (seqused.data == nullptr) return length;
  return min_of(max_of(ptx::load_global(seqused.data + batch * seqused.stride), 0), length);
}

TANDEM_DEVICE QBlock dense_q_block(const QBlocks& blocks, int index, int block_m) {
  const int m_block_of_all = index / blocks.nheads_q;
  const int batch = m_block_of_all / blocks.m_blocks;
  QBlock block{};
  block.index = index;
  block.first_row = (m_block_of_all - batch * blocks.m_blocks) * block_m;
  block.q_rows = blocks.seqlen_q;
  block.q_len = used_of_entry(blocks.seqused_q, batch, blocks.seqlen_q);
  block.k_len = used_of_entry(blocks.seqused_k, batch, blocks.seqlen_k);
  block.head = index - m_block_of_all * blocks.nheads_q;
  block.batch = batch;
  return block;
}

// The number of the sequence that holds an m_block, counted over all.
TANDEM_DEVICE int sequence_of_m_block(const QBlocks& blocks, int m_block_of_all) {
  int low = 0;
  int high = blocks.num_sequences;  // m_block_begin of low <= m_block_of_all < that of high
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (ptx::load_global(&blocks.sequences[middle].m_block_begin) <= m_block_of_all) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

TANDEM_DEVICE QBlock packed_q_block(const QBlocks& blocks, int index, int block_m) {
  const int m_block_of_all = index / blocks.nheads_q;
  const BackwardSequence* sequence = blocks.sequences + sequence_of_m_block(blocks, m_block_of_all);
  QBlock block{};
  block.index = index;
  block.q_begin = ptx::load_global(&sequence->q_begin);
  block.first_row = (m_block_of_all - ptx::load_global(&sequence->m_block_begin)) * block_m;
  block.q_rows = ptx::load_global(&sequence->q_rows);
  block.q_len = ptx::load_global(&sequence->q_len);
  block.k_len = ptx::load_global(&sequence->k_len);
  block.head = index - m_block_of_all * blocks.nheads_q;
  return block;
}

TANDEM_DEVICE int count_m_blocks(const QBlocks& blocks) {
  if (blocks.sequences != nullptr) return ptx::load_global(&blocks.workspace->m_blocks);
  return blocks.batch * blocks.m_blocks;
}

// Grids have as many thread blocks as there are q_blocks at most. Whoever prepared the sequences has ended by now.
TANDEM_DEVICE bool is_q_block(const QBlocks& blocks, int index) {
  return blocks.nheads_q > 0 && index / blocks.nheads_q < count_m_blocks(blocks);
}

TANDEM_DEVICE QBlock find_q_block(const QBlocks& blocks, int index, int block_m) {
  return blocks.sequences == nullptr ? dense_q_block(blocks, index, block_m) : packed_q_block(blocks, index, block_m);
}

// Where row `row` of the block's sequence lies in a tensor with these strides.
TANDEM_DEVICE int64_t row_offset(const QBlock& block, const RowStrides& strides, int row) {
  return block.batch * strides.batch + block.head * strides.head + (block.q_begin + row) * strides.row;
}

}  // namespace tandem::sm90
