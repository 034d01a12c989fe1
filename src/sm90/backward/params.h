#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/backward/records.h"
#include "sm90/forward/params.h"
#include "sm90/ptx/tensor_map.h"

namespace tandem::sm90 {

// One sequence of a packed problem, as the preparing kernel leaves it in the workspace. The rows and keys of a buffer
// that belong to no sequence are sequences of their own, without a used one: the kernels clear their gradients as they
// go. An m_block is kBlockM query rows of a sequence, an n_block kBlockN keys; both are counted in the order of work.
struct BackwardSequence {
  int q_begin;        // first row
  int q_rows;         // of the buffer that it owns
  int q_len;          // used
  int k_begin;        // first key
  int k_rows;         // of the buffer that it owns
  int k_len;          // used
  int m_block_begin;  // m_blocks of the sequences before it
  int n_block_begin;  // n_blocks of the sequences before it
};
static_assert(sizeof(BackwardSequence) == 32);

// Head of the workspace.
struct BackwardWorkspace {
  uint32_t next_tile;  // work tiles handed out beyond the first of each block
  int m_blocks;        // packed: of all sequences
  int n_blocks;        // packed: of all sequences
  int unused;
};

// What the rows of one m_block of one head see, with interval arrays. Rows that see nothing count in max_lo only, as
// INT32_MAX: no block of keys is full then. If no row sees any, min_lo is INT32_MAX and max_hi 0.
struct MBlockBounds {
  int min_lo, max_lo, min_hi, max_hi;
};
static_assert(sizeof(MBlockBounds) == 16);

// Number of an m_block of one head among all: where its LSE, delta, dQ and bounds lie in the workspace.
TANDEM_HD constexpr int64_t q_block_index(int64_t m_block_of_all, int64_t head, int64_t nheads_q) {
  return m_block_of_all * nheads_q + head;
}

// Where row m of an m_block has its LSE and delta: of each 16 rows, the four that a thread of a warp needs, 2t, 2t + 1,
// 2t + 8 and 2t + 9 of its columns, lie together.
TANDEM_HD constexpr int row_value_place(int m) {
  return m / 16 * 16 + m % 8 / 2 * 4 + m / 8 % 2 * 2 + m % 2;
}

// dQ of an m_block is summed up in the order in which the consumers hold it: squares of 64 x 64, first along the head
// dim, of which the last may have 32 columns; in each, the 16 rows of warp 0, 1, 2 and 3; of a warp's, 8 or 4 groups of
// 8 columns; of a group's, 4 floats of each lane: columns 2 (lane % 4) + {0, 1} of row lane / 4, then of row lane / 4 +
// 8.
TANDEM_HD constexpr int dq_place(int m, int column, int headdim) {
  const int square = m / 64 * 64 * headdim + column / 64 * 64 * 64;
  const int left = headdim - column / 64 * 64;
  const int groups = (left < 64 ? left : 64) / 8;
  const int lane = m % 8 * 4 + column % 8 / 2;
  return square + (m % 64 / 16 * groups + column % 64 / 8) * 128 + lane * 4 + m / 8 % 2 * 2 + column % 2;
}

// The backward kernel's only parameter: one launch's problem, as it lies in the kernel's constant memory.
struct BackwardParams {
  ptx::TensorMap q;     // axes (headdim, rows, nheads_q, batch); box: one panel of kBlockM rows
  ptx::TensorMap k;     // axes (headdim, rows, nheads_k, batch); box: one panel of kBlockN keys
  ptx::TensorMap v;     // as k
  ptx::TensorMap dout;  // as q
  ptx::TensorMap dk;    // as k; box: one panel of 64 keys
  ptx::TensorMap dv;    // as dk

  void* dk_data = nullptr;  // for keys that the copy engine would write too much of
  void* dv_data = nullptr;
  RowStrides dk_strides;
  RowStrides dv_strides;

  BackwardWorkspace* workspace = nullptr;
  const BackwardSequence* sequences = nullptr;  // packed: in the order of work, num_sequences of them; else nullptr
  int num_sequences = 0;
  const KeyBlockRecord* records = nullptr;  // (n_block, record_heads); dense: those of a batch entry lie together
  int record_heads = 1;                     // nheads_k if interval arrays differ between heads
  const float* lse_log2 = nullptr;          // (q_block, row_value_place): LSE times log2(e); +inf: the row sees no key
  const float* delta = nullptr;             // as lse_log2
  float* dq = nullptr;                      // (q_block, dq_place): the sums of dS K, not scaled
  uint32_t* dq_turns = nullptr;             // deterministic: (q_block), the n_block that adds next; dq_turns.cuh
  const MBlockBounds* bounds = nullptr;     // (q_block); nullptr: no interval arrays

  int nheads_q = 0;
  int nheads_k = 0;
  Divisor nheads_k_divisor;
  int qheads_per_khead = 0;
  DenseWork dense_work;  // dense, of n_blocks and nheads_k; packed: n_block by n_block, head by head

  int seqlen_q = 0;  // dense
  int seqlen_k = 0;
  const int* seqused_q = nullptr;  // dense; nullptr: all rows are used
  const int* seqused_k = nullptr;
  int64_t seqused_q_stride = 0;
  int64_t seqused_k_stride = 0;

  BasicMaskSpec<int> mask;  // causal is a window here
  const int* lo = nullptr;  // nullptr: no lower bound
  const int* hi = nullptr;
  RowStrides lo_strides;
  RowStrides hi_strides;

  ScoreTransform transform = ScoreTransform::kNone;
  float score_factor = 1;
  float scale_log2 = 0;  // of the transformed scores, times log2(e); positive
  float softmax_scale = 0;
  int headdim = 0;  // of the problem: columns of dK
  int headdim_v = 0;
};

TANDEM_HD inline bool is_deterministic(const BackwardParams& params) {
  return params.dq_turns != nullptr;
}

}  // namespace tandem::sm90
