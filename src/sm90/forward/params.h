#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/ptx/tensor_map.h"

namespace tandem::sm90 {

// Strides of a tensor with one value per (batch, head, row), in elements.
struct RowStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

// One sequence of a packed problem, as the preparing kernel leaves it in the workspace. The rows of a buffer that
// belong to no sequence are sequences of their own, without a used row: the kernel clears their output as it goes.
struct PackedSequence {
  int q_begin;      // first row
  int q_rows;       // of the buffer that it owns
  int q_len;        // used
  int k_begin;      // first key
  int k_len;        // used
  int m_blocks;     // of q_rows
  int block_begin;  // m_blocks of the sequences before it, in the order of work
  int number;       // in the caller's order; -1, or that of the last plus 1, for rows of no sequence
};
static_assert(sizeof(PackedSequence) == 32, "written and read as two vectors of four words");

// What the preparing kernel leaves in the workspace.
struct ForwardWorkspace {
  uint32_t next_tile;  // work tiles handed out beyond the first of each block
  int m_blocks;        // packed: of all sequences
  int unused[2];
};

// fp8 factors: one for each (sequence, head, block of kScaleBlockRows rows), axes that are not there with stride 0.
struct BlockScales {
  const float* data = nullptr;  // nullptr: all are 1
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t block_stride = 0;
  Divisor heads_per_scale;
  int last_block = 0;  // serves all later ones too
};

// Scores are changed before the softmax: not at all, multiplied by score_factor, or soft-capped: tanh(score_factor S).
enum class ScoreTransform : int { kNone, kMultiply, kSoftcap };

// The forward kernel's only parameter: one launch's problem, as it lies in the kernel's constant memory.
struct ForwardParams {
  ptx::TensorMap q;    // axes (headdim, rows, nheads_q, batch); box: one panel of one warpgroup's rows
  ptx::TensorMap k;    // axes (headdim, rows, nheads_k, batch); box: one panel of kBlockN keys
  ptx::TensorMap v;    // as k
  ptx::TensorMap out;  // as q

  // What the scheduler reads for a block's first tile comes together: each line of constant memory costs a miss.
  ForwardWorkspace* workspace = nullptr;
  const PackedSequence* sequences = nullptr;  // packed: in the order of work, num_sequences of them; else nullptr
  Divisor qheads_per_khead;
  DenseWork dense_work;  // dense
  int seqlen_q = 0;      // dense
  int seqlen_k = 0;
  const int* seqused_q = nullptr;  // dense; nullptr: all rows are used
  const int* seqused_k = nullptr;
  int64_t seqused_q_stride = 0;
  int64_t seqused_k_stride = 0;
  BandMask band;          // the mask but for its chunks
  bool narrowed = false;  // rows see less than the band: by chunks, lo and hi (general instances)

  int num_sequences = 0;   // packed
  WorkGroups packed_work;  // packed: of each sequence
  int nheads_q = 0;

  float* lse = nullptr;  // nullptr: not wanted
  RowStrides lse_strides;
  void* out_data = nullptr;  // for m_blocks that the copy engine would write too much of
  RowStrides out_strides;

  BasicMaskSpec<int> mask;  // narrowed; causal is a window here
  const int* lo = nullptr;  // nullptr: no lower bound
  const int* hi = nullptr;
  RowStrides lo_strides;
  RowStrides hi_strides;

  ScoreTransform transform = ScoreTransform::kNone;
  float score_factor = 1;
  float scale_log2 = 0;         // of the transformed scores, times log2(e); positive
  const float* sink = nullptr;  // nullptr: none
  int64_t sink_stride = 0;
  int headdim_v = 0;  // of the problem: columns of the output

  // e4m3. There scale_log2 may have any sign, and the maps' v is one of V^T, axes (slots, headdim_v, nheads_k, batch).
  BlockScales q_scale, k_scale, v_scale;
  int promotion_blocks = 0;  // of keys that the tensor core sums P V of; then it joins O in fp32
  bool out_is_fp16 = false;
};

}  // namespace tandem::sm90
