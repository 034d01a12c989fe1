#pragma once

#include <cstdint>

// What the kernel that plans tiles (key_blocks.cuh) leaves in the workspace for the backward kernel: words of 16 bytes,
// which a slot of a work tile in shared memory repeats.
namespace tandem::sm90 {

struct TileKeyRange {
  int first_key;  // of the n_block, in its sequence
  int k_begin;    // the sequence's first key in the buffer
  int k_len;      // used keys
  int k_rows;     // of the buffer that the sequence owns: those past k_len get gradients of 0
};

struct TileQueryRange {
  int q_begin;         // the sequence's first row in the buffer
  int q_len;           // used rows
  int m_begin, m_end;  // m_blocks of each head that are visited
};

// m_blocks in [full_begin, full_end) need no mask. Rows outside [seen_begin, seen_end) see no key at all, or are no
// rows: their Q and dO are cleared before use, but for rows past the end of a dense buffer, which come as zeros.
struct TileMask {
  int full_begin, full_end;
  int seen_begin, seen_end;
};

struct TileSequence {
  int batch;          // 0 in a packed problem, whose rows and keys count from the start of the buffer
  int m_block_begin;  // m_blocks of all sequences before this one
  int unused[2];
};

// Bit i of word i / 32: key first_key + i is seen by some row, or comes as zeros. K and V of the others are cleared.
struct SeenKeys {
  uint32_t bits[4];
};

struct KeyBlockRecord {
  TileKeyRange keys;
  TileQueryRange rows;
  TileMask mask;
  TileSequence sequence;
  SeenKeys seen;
};
static_assert(sizeof(KeyBlockRecord) == 80);

}  // namespace tandem::sm90
