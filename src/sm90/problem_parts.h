#pragma once

#include "core/int_math.h"
#include "core/mask.h"
#include "core/problem.h"
#include "core/status.h"
#include "sm90/forward/params.h"
#include "sm90/packed_lengths.h"
#include "sm90/tensor_map_spec.h"

// Parts of a problem as the kernels' parameters have them. Host arithmetic only.
namespace tandem::sm90 {

// Kernels count rows, keys and work tiles in an int; the slack leaves room for a tile beyond the last.
constexpr int64_t kMaxCount = int64_t{1} << 29;

inline RowStrides row_strides(const RowTensor& tensor) {
  return {tensor.batch_stride, tensor.head_stride, tensor.row_stride};
}
inline RowStrides row_strides(const Tensor& tensor) {
  return {tensor.batch_stride, tensor.head_stride, tensor.row_stride};
}

inline DeviceVector device_vector(const Vector& vector) {
  return {static_cast<const int*>(vector.data), vector.stride};
}

inline PackedLengths packed_lengths(const AttentionProblem& p) {
  PackedLengths lengths;
  lengths.cu_seqlens_q = device_vector(p.cu_seqlens_q);
  lengths.cu_seqlens_k = device_vector(p.cu_seqlens_k);
  lengths.seqused_q = device_vector(p.seqused_q);
  lengths.seqused_k = device_vector(p.seqused_k);
  lengths.batch = static_cast<int>(p.batch);
  lengths.total_q = static_cast<int>(p.total_q);
  lengths.total_k = static_cast<int>(p.total_k);
  return lengths;
}

// A window that no row can see past is open. Lengths are at most kMaxCount, so what is left fits into an int.
inline int narrow_window(int64_t window, const AttentionProblem& p) {
  return window < 0 || window >= p.total_q + p.total_k ? -1 : static_cast<int>(window);
}

// Causal is a window that shows nothing to the right.
inline BasicMaskSpec<int> narrow_mask(const AttentionProblem& p) {
  BasicMaskSpec<int> mask;
  mask.top_left = p.mask.top_left;
  mask.window_left = narrow_window(p.mask.window_left, p);
  mask.window_right = p.mask.causal ? 0 : narrow_window(p.mask.window_right, p);
  mask.attention_chunk = static_cast<int>(min_of(p.mask.attention_chunk, kMaxCount));
  return mask;
}

// Packed: one batch entry, the whole buffer. seqlen_q of the buffer is total_q, in dense problems too.
inline int64_t map_batch(const AttentionProblem& p) {
  return p.packed ? 1 : p.batch;
}

// The map of a tensor of heads, axes (headdim, rows, heads, batch); a box is one panel of `box_rows` rows.
TensorMapSpec head_map_spec(const Tensor& tensor, int64_t headdim, int64_t rows, int64_t heads, int64_t batch,
                            int box_rows, Swizzle panel);

// Can the copy engine read it? `name`: the argument's, for the sentence.
Status check_head_map(const char* name, const TensorMapSpec& spec);
Status check_headdim(const char* name, int64_t headdim);
Status check_fp8_headdim(const char* name, int64_t headdim);

// How scores become exponents: 2^(log2 * transformed S).
struct ScoreScale {
  ScoreTransform transform = ScoreTransform::kNone;
  float factor = 1;  // of S, in the transform
  float log2 = 0;    // positive
};
ScoreScale score_scale(const AttentionProblem& p);

}  // namespace tandem::sm90
