#include "sm90/forward/plan.h"

#include <cmath>
#include <string>

#include "sm90/forward/traits.h"

namespace tandem::sm90 {
namespace {

using Traits = ForwardInstance;

constexpr double kLog2E = 1.4426950408889634;

// Axes of size 1 (rows, heads, batch entries) may have any stride: the copy engine never uses it, but wants a legal
// one.
TensorMapSpec tensor_map_spec(const Tensor& tensor, int64_t headdim, int64_t rows, int64_t heads, int64_t batch,
                              int box_rows) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  const int64_t dims[4] = {headdim, rows, heads, batch};
  const int64_t strides[4] = {1, tensor.row_stride, tensor.head_stride, tensor.batch_stride};
  TensorMapSpec spec;
  spec.base = tensor.data;
  spec.dtype = tensor.dtype;
  spec.rank = 4;
  for (int axis = 0; axis < 4; ++axis) {
    spec.dims[axis] = dims[axis];
    spec.strides_bytes[axis] = dims[axis] == 1 ? 16 : strides[axis] * bytes;
    spec.box[axis] = 1;
  }
  spec.box[0] = static_cast<int32_t>(static_cast<int>(spec.swizzle) / bytes);
  spec.box[1] = box_rows;
  return spec;
}

TensorMapSpec query_map(const AttentionProblem& p, const Tensor& tensor) {
  return tensor_map_spec(tensor, p.headdim, p.seqlen_q, p.nheads_q, p.batch, Traits::QTile::kRows);
}

TensorMapSpec key_map(const AttentionProblem& p, const Tensor& tensor) {
  if (p.seqlen_k == 0) return query_map(p, p.q);  // never read, but must be legal
  return tensor_map_spec(tensor, p.headdim, p.seqlen_k, p.nheads_k, p.batch, Traits::kBlockN);
}

Status check_strides(const char* name, const TensorMapSpec& spec) {
  const Status status = check_tensor_map(spec);
  if (status.is_ok()) return status;
  return {status.code(), std::string(name) + ": " + status.message()};
}

}  // namespace

int64_t forward_tiles(const AttentionProblem& p) {
  return ceil_div(p.seqlen_q, Traits::kBlockM) * p.nheads_q * p.batch;
}

Status forward_supports(const AttentionProblem& p) {
  if (p.backward || p.packed) return Status::unsupported("the sm90 backend runs the dense forward only");
  if (p.dtype != DType::kBf16 || p.out_dtype != DType::kBf16) {
    return Status::unsupported("the sm90 backend takes bf16 tensors only");
  }
  if (p.headdim != Traits::kHeadDim || p.headdim_v != Traits::kHeadDim) {
    return Status::unsupported("the sm90 backend runs headdim " + std::to_string(Traits::kHeadDim) + " only, not " +
                               std::to_string(p.headdim));
  }
  if (!(p.softmax_scale > 0)) return Status::unsupported("the sm90 backend takes positive softmax scales only");
  if (p.softcap != 0 || p.sink.present() || p.lo.present() || p.hi.present()) {
    return Status::unsupported("the sm90 backend runs without softcap, sink and row intervals only");
  }
  if (p.seqused_q.present() || p.seqused_k.present()) {
    return Status::unsupported("the sm90 backend takes no seqused yet");
  }
  if (forward_tiles(p) == 0) return Status::ok();
  TANDEM_RETURN_IF_ERROR(check_strides("q", query_map(p, p.q)));
  TANDEM_RETURN_IF_ERROR(check_strides("out", query_map(p, p.out)));
  TANDEM_RETURN_IF_ERROR(check_strides("k", key_map(p, p.k)));
  return check_strides("v", key_map(p, p.v));
}

ForwardPlan plan_forward(const AttentionProblem& p) {
  // Heads that work side by side in step on the same key blocks share them in the L2. PERF: H200, headdim 128 causal,
  // 4k keys: groups of 32 heads 1.03 to 1.14 against all heads at once or groups sized to the L2.
  constexpr int64_t kHeadGroup = 32;
  ForwardPlan plan;
  plan.q = query_map(p, p.q);
  plan.k = key_map(p, p.k);
  plan.v = key_map(p, p.v);
  plan.out = query_map(p, p.out);

  ForwardParams& params = plan.params;
  params.lse = static_cast<float*>(p.lse.data);
  params.lse_batch_stride = p.lse.batch_stride;
  params.lse_head_stride = p.lse.head_stride;
  params.lse_row_stride = p.lse.row_stride;
  params.tiles = forward_tiles(p);
  params.m_blocks = ceil_div(p.seqlen_q, Traits::kBlockM);
  params.nheads_q = p.nheads_q;
  params.batch = p.batch;
  params.qheads_per_khead = p.qheads_per_khead();
  const bool longest_first = late_rows_are_longer(p.mask);
  params.order = {longest_first ? kHeadGroup : 1, longest_first};
  params.seqlen_q = p.seqlen_q;
  params.seqlen_k = p.seqlen_k;
  params.mask = p.mask;
  params.scale_log2 = static_cast<float>(p.softmax_scale * kLog2E);
  return plan;
}

Workspace forward_workspace(const AttentionProblem&) {
  return {sizeof(uint32_t), alignof(uint32_t)};
}

}  // namespace tandem::sm90
