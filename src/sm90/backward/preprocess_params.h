#pragma once

#include "core/mask.h"
#include "sm90/backward/params.h"
#include "sm90/backward/q_blocks.h"

namespace tandem::sm90 {

// The parameter of the kernel before the backward kernel. What it writes is described in params.h.
struct PreprocessParams {
  QBlocks blocks;
  const void* out = nullptr;  // 16-bit; rows at multiples of 16 bytes
  const void* dout = nullptr;
  RowStrides out_strides;
  RowStrides dout_strides;
  int headdim_v = 0;  // of the problem
  const float* lse = nullptr;
  const float* dlse = nullptr;  // nullptr: none
  RowStrides lse_strides;
  RowStrides dlse_strides;

  BasicMaskSpec<int> mask;  // causal is a window here
  const int* lo = nullptr;  // nullptr: no lower bound
  const int* hi = nullptr;
  RowStrides lo_strides;
  RowStrides hi_strides;
  const float* sink = nullptr;  // nullptr: none
  int64_t sink_stride = 0;

  BackwardWorkspace* workspace = nullptr;
  float* lse_log2 = nullptr;
  float* delta = nullptr;
  MBlockBounds* bounds = nullptr;   // nullptr: no interval arrays
  float* dsink_partials = nullptr;  // of each q_block; nullptr: no sink
  float* dq = nullptr;
};

}  // namespace tandem::sm90
