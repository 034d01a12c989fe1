#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/ptx/tensor_map.h"

namespace tandem::sm90 {

// The forward kernel's only parameter: one launch's problem, as it lies in the kernel's constant memory.
struct ForwardParams {
  ptx::TensorMap q;  // axes (headdim, seqlen_q, nheads_q, batch); box: 64 columns of one warpgroup's rows
  ptx::TensorMap k;  // axes (headdim, seqlen_k, nheads_k, batch); box: 64 columns of kBlockN keys
  ptx::TensorMap v;
  ptx::TensorMap out;  // as q

  float* lse = nullptr;  // nullptr: not wanted
  int64_t lse_batch_stride = 0;
  int64_t lse_head_stride = 0;
  int64_t lse_row_stride = 0;

  uint32_t* next_tile =
      nullptr;        // 0 before the launch; counts the work tiles handed out beyond the first of each block
  int64_t tiles = 0;  // m_blocks * nheads_q * batch
  int64_t m_blocks = 0;
  int64_t nheads_q = 0;
  int64_t batch = 0;
  int64_t qheads_per_khead = 1;
  WorkOrder order;

  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  MaskSpec mask;
  float scale_log2 = 0;  // softmax_scale * log2(e), positive
};

}  // namespace tandem::sm90
