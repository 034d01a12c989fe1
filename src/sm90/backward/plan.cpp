#include "sm90/backward/plan.h"

#include <string>

#include "sm90/backward/layout.h"
#include "sm90/backward/tiles.h"
#include "sm90/problem_parts.h"

namespace tandem::sm90 {
namespace {

// Which of the two kinds of instance.
bool is_general(const AttentionProblem& p) {
  return p.lo.present() || p.hi.present() || score_scale(p).transform != ScoreTransform::kNone;
}

int tiles_row_of(const AttentionProblem& p) {
  return find_backward_tiles(static_cast<int>(p.headdim), static_cast<int>(p.headdim_v), is_general(p));
}

struct Maps {
  TensorMapSpec q, k, v, out, dout, dq, dk, dv;
};

// out and dq are not the copy engine's, but are read and written in the same chunks of 16 bytes.
Maps tensor_maps(const AttentionProblem& p, const BackwardTiles& tiles) {
  const Swizzle panel = panel_of(tiles.headdim * 2);
  const Swizzle panel_v = panel_of(tiles.headdim_v * 2);
  const auto of_queries = [&](const Tensor& tensor, int64_t headdim, Swizzle swizzle) {
    return head_map_spec(tensor, headdim, p.total_q, p.nheads_q, map_batch(p), tiles.block_m, swizzle);
  };
  const auto of_keys = [&](const Tensor& tensor, int64_t headdim, int box_rows, Swizzle swizzle) {
    return head_map_spec(tensor, headdim, p.total_k, p.nheads_k, map_batch(p), box_rows, swizzle);
  };
  Maps maps;
  maps.q = of_queries(p.q, p.headdim, panel);
  maps.out = of_queries(p.out, p.headdim_v, panel_v);
  maps.dout = of_queries(p.dout, p.headdim_v, panel_v);
  maps.dq = of_queries(p.dq, p.headdim, panel);
  maps.k = of_keys(p.k, p.headdim, tiles.block_n, panel);
  maps.v = of_keys(p.v, p.headdim_v, tiles.block_n, panel_v);
  maps.dk = of_keys(p.dk, p.headdim, 64, panel);
  maps.dv = of_keys(p.dv, p.headdim_v, 64, panel_v);
  // Never read or written, but must be legal.
  if (p.total_q == 0 || p.nheads_q == 0) {
    maps.q = maps.dq = maps.k;
    maps.out = maps.dout = maps.v;
  }
  if (p.total_k == 0) {
    maps.k = maps.dk = maps.q;
    maps.v = maps.dv = maps.dout;
  }
  return maps;
}

Status check_maps(const Maps& maps) {
  TANDEM_RETURN_IF_ERROR(check_head_map("q", maps.q));
  TANDEM_RETURN_IF_ERROR(check_head_map("k", maps.k));
  TANDEM_RETURN_IF_ERROR(check_head_map("v", maps.v));
  TANDEM_RETURN_IF_ERROR(check_head_map("out", maps.out));
  TANDEM_RETURN_IF_ERROR(check_head_map("dout", maps.dout));
  TANDEM_RETURN_IF_ERROR(check_head_map("dq", maps.dq));
  TANDEM_RETURN_IF_ERROR(check_head_map("dk", maps.dk));
  return check_head_map("dv", maps.dv);
}

Status check_types(const AttentionProblem& p) {
  if (!is_16bit(p.dtype)) {
    return Status::unsupported(std::string("q, k and v are ") + dtype_name(p.dtype) +
                               "; the sm90 backend takes fp16 and bf16");
  }
  if (p.out_dtype == p.dtype) return Status::ok();
  return Status::unsupported(std::string("out is ") + dtype_name(p.out_dtype) +
                             "; the sm90 backend takes the type of q, " + dtype_name(p.dtype));
}

Status check_headdims(const AttentionProblem& p) {
  TANDEM_RETURN_IF_ERROR(check_headdim("headdim", p.headdim));
  return check_headdim("headdim_v", p.headdim_v);
}

Status check_counts(const AttentionProblem& p, const BackwardTiles& tiles) {
  if (max_of(p.total_q, p.total_k) > kMaxCount) {
    return Status::unsupported("q or k has " + std::to_string(max_of(p.total_q, p.total_k)) +
                               " rows; the sm90 backend takes up to 2^29");
  }
  // In double: nothing in here may overflow.
  const double batch = static_cast<double>(p.batch) + 2;
  const double heads = static_cast<double>(max_of(p.nheads_q, p.nheads_k));
  const double rows = static_cast<double>(max_of(p.total_q, p.total_k)) * (p.packed ? 1 : batch);
  if ((rows / tiles.block_m + batch) * heads > static_cast<double>(kMaxCount)) {
    return Status::unsupported("the problem has more than 2^29 blocks of " + std::to_string(tiles.block_m) +
                               " rows; the sm90 backend counts no further");
  }
  return Status::ok();
}

// Heads that are at work at the same time share the L2 with their Q, dO and sums of dQ: in groups of equal size that
// fit, the longest tiles of each first. PERF: H200, headdim 128 causal, 4k rows, the prototype: 1.05 against one group.
// Deterministic, tiles of one head wait for each other, so that they should not all be at work at the same time.
WorkOrder work_order(const AttentionProblem& p, const BackwardTiles& tiles) {
  if (!late_rows_are_longer(p.mask) && !p.exec.deterministic) return {1, false};
  constexpr double kBytesOfL2 = 33.6e6;
  const double bytes_of_row = tiles.headdim * 8.0;  // 2 of Q, 2 of dO, 4 of dQ
  const int64_t heads = p.nheads_k * p.batch;
  const double bytes = static_cast<double>(heads) * static_cast<double>(p.seqlen_q) * bytes_of_row *
                       static_cast<double>(p.qheads_per_khead());
  const int64_t groups = max_of(int64_t{1}, static_cast<int64_t>(bytes / kBytesOfL2 + 0.5));
  return {max_of(int64_t{1}, ceil_div(heads, groups)), false};
}

// Then there is no gradient but dsink, which is 0.
bool is_without_rows(const AttentionProblem& p) {
  const bool has_dq = p.total_q > 0 && p.nheads_q > 0;
  const bool has_dk = p.total_k > 0 && p.nheads_k > 0;
  return map_batch(p) == 0 || (!has_dq && !has_dk) || (p.headdim == 0 && p.headdim_v == 0);
}

void set_masks(const AttentionProblem& p, BackwardParams& params) {
  params.mask = narrow_mask(p);
  params.lo = static_cast<const int*>(p.lo.data);
  params.hi = static_cast<const int*>(p.hi.data);
  params.lo_strides = row_strides(p.lo);
  params.hi_strides = row_strides(p.hi);
}

void set_scales(const AttentionProblem& p, BackwardParams& params) {
  const ScoreScale scale = score_scale(p);
  params.transform = scale.transform;
  params.score_factor = scale.factor;
  params.scale_log2 = scale.log2;
  params.softmax_scale = static_cast<float>(p.softmax_scale);
}

void set_buffers(const AttentionProblem& p, const BackwardLayout& layout, BackwardParams& params) {
  const BackwardBuffers buffers = backward_buffers(p, layout);
  params.workspace = buffers.workspace;
  params.sequences = buffers.sequences;
  params.num_sequences = static_cast<int>(p.batch) + 2;
  params.records = buffers.records;
  params.record_heads = static_cast<int>(layout.record_heads);
  params.lse_log2 = buffers.lse_log2;
  params.delta = buffers.delta;
  params.dq = buffers.dq;
  params.dq_turns = buffers.dq_turns;
  params.bounds = buffers.bounds;
}

void set_dense(const AttentionProblem& p, const BackwardTiles& tiles, BackwardParams& params) {
  params.dense_work = DenseWork(ceil_div(p.seqlen_k, tiles.block_n), p.nheads_k, p.batch, work_order(p, tiles));
  params.seqlen_q = static_cast<int>(p.seqlen_q);
  params.seqlen_k = static_cast<int>(p.seqlen_k);
  params.seqused_q = static_cast<const int*>(p.seqused_q.data);
  params.seqused_k = static_cast<const int*>(p.seqused_k.data);
  params.seqused_q_stride = p.seqused_q.stride;
  params.seqused_k_stride = p.seqused_k.stride;
}

}  // namespace

bool backward_is_empty(const AttentionProblem& p) {
  return is_without_rows(p) && (p.nheads_q == 0 || !p.dsink.present());
}

Status backward_supports(const AttentionProblem& p) {
  TANDEM_RETURN_IF_ERROR(check_types(p));
  TANDEM_RETURN_IF_ERROR(check_headdims(p));
  if (backward_is_empty(p) || is_without_rows(p)) return Status::ok();
  const BackwardTiles& tiles = kBackwardTiles[tiles_row_of(p)];
  TANDEM_RETURN_IF_ERROR(check_counts(p, tiles));
  return check_maps(tensor_maps(p, tiles));
}

BackwardPlan plan_backward(const AttentionProblem& p) {
  BackwardPlan plan;
  plan.tiles_row = tiles_row_of(p);
  plan.general = is_general(p);
  plan.dtype = p.dtype;
  const BackwardTiles& tiles = kBackwardTiles[plan.tiles_row];
  const BackwardLayout layout = backward_layout(p, tiles);
  plan.max_records = layout.max_n_blocks * layout.record_heads;
  plan.max_tiles = layout.max_n_blocks * p.nheads_k;
  plan.preprocess = plan_preprocess(p, plan.tiles_row);
  plan.postprocess = plan_postprocess(p, plan.tiles_row);
  if (plan.max_tiles == 0) return plan;
  const Maps maps = tensor_maps(p, tiles);
  plan.q = maps.q;
  plan.k = maps.k;
  plan.v = maps.v;
  plan.dout = maps.dout;
  plan.dk = maps.dk;
  plan.dv = maps.dv;

  BackwardParams& params = plan.params;
  params.dk_data = p.dk.data;
  params.dv_data = p.dv.data;
  params.dk_strides = row_strides(p.dk);
  params.dv_strides = row_strides(p.dv);
  params.nheads_q = static_cast<int>(p.nheads_q);
  params.nheads_k = static_cast<int>(p.nheads_k);
  params.nheads_k_divisor = Divisor(static_cast<uint32_t>(p.nheads_k));
  params.qheads_per_khead = static_cast<int>(p.qheads_per_khead());
  params.headdim = static_cast<int>(p.headdim);
  params.headdim_v = static_cast<int>(p.headdim_v);
  set_buffers(p, layout, params);
  set_masks(p, params);
  set_scales(p, params);
  if (!p.packed) set_dense(p, tiles, params);

  plan.key_blocks.problem = params;
  plan.key_blocks.records = backward_buffers(p, layout).records;
  plan.key_blocks.heads_differ = layout.heads_differ;
  plan.key_blocks.block_m = tiles.block_m;
  plan.key_blocks.block_n = tiles.block_n;
  plan.key_blocks.dense_key_blocks = p.packed ? 0 : static_cast<int>(layout.max_n_blocks);
  plan.key_blocks.dense_m_blocks = p.packed ? 0 : static_cast<int>(ceil_div(p.seqlen_q, tiles.block_m));
  if (p.exec.deterministic) plan.first_turns_blocks = (p.packed ? p.batch + 2 : p.batch) * layout.record_heads;
  return plan;
}

Workspace backward_workspace(const AttentionProblem& p) {
  if (backward_is_empty(p)) return {0, kBackwardAlignment};
  return {backward_layout(p, kBackwardTiles[tiles_row_of(p)]).bytes, kBackwardAlignment};
}

}  // namespace tandem::sm90
