#pragma once

#include "sm90/backward/params.h"
#include "sm90/backward/q_blocks.h"

namespace tandem::sm90 {

// The parameter of the kernel after the backward kernel.
struct PostprocessParams {
  QBlocks blocks;
  const float* sums = nullptr;      // (q_block, dq_place): dQ, not scaled
  const float* lse_log2 = nullptr;  // +inf: the row sees no key
  float softmax_scale = 0;
  void* dq = nullptr;  // 16-bit; rows at multiples of 16 bytes
  RowStrides dq_strides;
  int headdim = 0;  // of the problem

  const float* dsink_partials = nullptr;  // of each q_block; nullptr: no sink
  float* dsink = nullptr;
  int64_t dsink_stride = 0;
};

}  // namespace tandem::sm90
