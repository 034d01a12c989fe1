#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/mask.h"

// The validated form of tandem.h's parameter structs, and the only one that backends see. Dense and packed problems
// have the same form: strides are named, absent batch axes have stride 0, broadcasts have stride 0.
namespace tandem {

// q, k, v, out and their gradients. Element (b, row, head, column) lies at
// b * batch_stride + row * row_stride + head * head_stride + column. Packed: batch_stride is 0 and rows count from the
// start of the buffer. All strides count elements.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kNone;  // kNone: absent
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  bool present() const { return dtype != DType::kNone; }
};

// lse, dlse, lo and hi: one value per (b, head, row), with all strides free. The same convention.
struct RowTensor {
  void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  bool present() const { return dtype != DType::kNone; }
};

// sink, dsink, cu_seqlens_*, seqused_*: a vector.
struct Vector {
  void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t stride = 1;
  bool present() const { return dtype != DType::kNone; }
};

// fp8 scale factors: one per (b, head, block of 128 rows); axes that the caller's tensor lacks have stride 0. A packed
// sequence may have more blocks than the caller's axis (its length is not known on the host): rows beyond the axis use
// its last block.
struct Scales {
  void* data = nullptr;  // fp32
  DType dtype = DType::kNone;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t block_stride = 0;
  int64_t heads_per_scale = 1;  // q_scale given per key head: nheads_q / nheads_k
  int64_t blocks = 1;           // size of the block axis; 1 if the caller's tensor lacks it
  bool present() const { return dtype != DType::kNone; }
};

// Cosines or sines: (positions, pairs of columns), the last axis contiguous.
struct RotaryTable {
  void* data = nullptr;
  DType dtype = DType::kNone;
  int64_t position_stride = 0;
};

struct Execution {
  int32_t device_type = 0;  // TANDEM_CPU, TANDEM_CUDA
  int32_t device_ordinal = 0;
  void* stream = nullptr;
  void* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  int32_t backend = 0;      // as requested, TANDEM_BACKEND_AUTO included
  int32_t num_threads = 0;  // 0: OpenMP's default
  int32_t sm_margin = 0;
  bool needs_grad = false;
  bool deterministic = false;
  bool checked = false;  // the flag or TANDEM_CHECK=1
};

struct AttentionProblem {
  bool backward = false;
  bool packed = false;

  int64_t batch = 0;  // number of sequences
  int64_t nheads_q = 0;
  int64_t nheads_k = 0;
  int64_t headdim = 0;
  int64_t headdim_v = 0;
  int64_t seqlen_q = 0;  // dense: rows of each sequence; packed: 0
  int64_t seqlen_k = 0;
  int64_t total_q = 0;  // rows of the buffer that batch_stride spans: dense: seqlen_q; packed: total_q
  int64_t total_k = 0;
  int64_t max_seqlen_q = 0;  // hints of the packed structs; 0: unknown
  int64_t max_seqlen_k = 0;

  DType dtype = DType::kNone;      // of q, k, v
  DType out_dtype = DType::kNone;  // of out, dout
  double softmax_scale = 1;        // the default already filled in
  double softcap = 0;              // 0: none
  bool v_transposed = false;       // e4m3: v is V^T in slots (core/fp8.h), and v.row_stride steps over its columns
  MaskSpec mask;
  RowTensor lo, hi;  // int32; either may be absent

  Tensor q, k, v, out;
  RowTensor lse;  // optional in the forward
  Vector sink;
  Scales q_scale, k_scale, v_scale;
  Vector cu_seqlens_q, cu_seqlens_k;  // packed only
  Vector seqused_q, seqused_k;

  Tensor dout, dq, dk, dv;  // backward only
  RowTensor dlse;
  Vector dsink;

  Execution exec;

  int64_t qheads_per_khead() const { return nheads_k > 0 ? nheads_q / nheads_k : 0; }
};

// tandem_merge: `parts` partial results, `part_stride` elements apart.
struct MergeProblem {
  int64_t parts = 0;
  int64_t batch = 0;  // packed: 1
  int64_t rows = 0;   // seqlen_q or total_q
  int64_t nheads = 0;
  int64_t headdim_v = 0;

  Tensor out_partial;
  int64_t out_part_stride = 0;
  RowTensor lse_partial;
  int64_t lse_part_stride = 0;
  Vector sink;
  Tensor out;
  RowTensor lse;  // optional

  Execution exec;
};

// tandem_quantize_fp8 of one tensor. `scale` has an entry for each group of rows that share one.
struct QuantizeProblem {
  bool packed = false;
  bool transposed = false;  // out is in slots (core/fp8.h), and out.row_stride steps over its columns
  int64_t batch = 0;
  int64_t nheads = 0;
  int64_t headdim = 0;
  int64_t seqlen = 0;  // dense: rows of each sequence; packed: 0
  int64_t total = 0;   // rows of the buffer that batch_stride spans

  Tensor x, out;
  Scales scale;
  bool scale_per_head = false;  // false: one scale for all
  bool scale_per_block = false;
  Vector cu_seqlens, seqused;

  RotaryTable rotary_cos, rotary_sin;
  int64_t rotary_positions = 0;
  int64_t rotary_pairs = 0;  // 0: no rotary embedding
  bool rotary_interleaved = false;
  Vector rotary_offset;

  bool rotate = false;
  uint64_t seed = 0;

  Execution exec;
};

// What a run needs from the caller.
struct Workspace {
  uint64_t bytes = 0;
  uint64_t alignment = 256;
};

}  // namespace tandem
