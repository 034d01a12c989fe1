#include "sm90/forward/plan.h"

#include <string>

#include "core/fp8.h"
#include "sm90/forward/tiles.h"
#include "sm90/forward/traits.h"
#include "sm90/problem_parts.h"

namespace tandem::sm90 {
namespace {

struct Maps {
  TensorMapSpec q, k, v, out;
};

bool is_fp8(const AttentionProblem& p) {
  return p.dtype == DType::kE4m3;
}

// V^T, which the products read, is made of V by the kernel.
bool transposes(const AttentionProblem& p) {
  return is_fp8(p) && !p.v_transposed;
}

// Of all sequences of V^T (core/fp8.h).
int64_t count_slots(const AttentionProblem& p) {
  return p.packed ? packed_slot_begin(p.total_k, p.batch) : dense_slots(p.seqlen_k);
}

// V^T, slot by slot.
TensorMapSpec slots_map_spec(const AttentionProblem& p, const ForwardTiles& tiles) {
  TensorMapSpec spec = head_map_spec(p.v, count_slots(p), p.headdim_v, p.nheads_k, map_batch(p), tiles.headdim_v,
                                     panel_of(tiles.block_n));
  spec.box[0] = tiles.block_n;
  return spec;
}

Maps tensor_maps(const AttentionProblem& p, const ForwardTiles& tiles) {
  const int bytes = static_cast<int>(dtype_bytes(p.dtype));
  const Swizzle qk_panel = panel_of(tiles.headdim * bytes);
  const Swizzle out_panel = panel_of(tiles.headdim_v * static_cast<int>(dtype_bytes(p.out_dtype)));
  Maps maps;
  maps.q = head_map_spec(p.q, p.headdim, p.total_q, p.nheads_q, map_batch(p), kFragmentRows, qk_panel);
  maps.out = head_map_spec(p.out, p.headdim_v, p.total_q, p.nheads_q, map_batch(p), kFragmentRows, out_panel);
  if (p.total_k == 0) {  // never read, but must be legal
    maps.k = maps.q;
    maps.v = maps.out;
    return maps;
  }
  maps.k = head_map_spec(p.k, p.headdim, p.total_k, p.nheads_k, map_batch(p), tiles.block_n, qk_panel);
  maps.v = p.v_transposed ? slots_map_spec(p, tiles)
                          : head_map_spec(p.v, p.headdim_v, p.total_k, p.nheads_k, map_batch(p), tiles.block_n,
                                          panel_of(tiles.headdim_v * bytes));
  return maps;
}

Status check_maps(const Maps& maps) {
  TANDEM_RETURN_IF_ERROR(check_head_map("q", maps.q));
  TANDEM_RETURN_IF_ERROR(check_head_map("out", maps.out));
  TANDEM_RETURN_IF_ERROR(check_head_map("k", maps.k));
  return check_head_map("v", maps.v);
}

Status check_types(const AttentionProblem& p) {
  if (!is_16bit(p.dtype) && !is_fp8(p)) {
    return Status::unsupported(std::string("q, k and v are ") + dtype_name(p.dtype) +
                               "; the sm90 backend takes fp16, bf16 and e4m3");
  }
  if (is_fp8(p) && !is_16bit(p.out_dtype)) {
    return Status::unsupported(std::string("out is ") + dtype_name(p.out_dtype) +
                               "; the sm90 backend writes fp16 and bf16");
  }
  if (!is_fp8(p) && p.out_dtype != p.dtype) {
    return Status::unsupported(std::string("out is ") + dtype_name(p.out_dtype) +
                               "; the sm90 backend writes the type of q, " + dtype_name(p.dtype));
  }
  return Status::ok();
}

int block_m_of(const ForwardTiles& tiles) {
  return tiles.consumers * kFragmentRows;
}

int64_t max_m_blocks(const AttentionProblem& p, int64_t block_m) {
  // Each sequence, and each end of the buffer, may have one block that is cut short.
  return p.packed ? p.total_q / block_m + p.batch + 2 : ceil_div(p.seqlen_q, block_m) * p.batch;
}

// A sequence's keys are counted, in an int, from its first slot on.
constexpr int64_t kMaxSlots = int64_t{1} << 30;

Status check_counts(const AttentionProblem& p, const ForwardTiles& tiles) {
  if (max_of(p.total_q, p.total_k) > kMaxCount) {
    return Status::unsupported("q or k has " + std::to_string(max_of(p.total_q, p.total_k)) +
                               " rows; the sm90 backend takes up to 2^29");
  }
  if (p.v_transposed && count_slots(p) > kMaxSlots) {
    return Status::unsupported("v has " + std::to_string(count_slots(p)) + " slots; the sm90 backend takes up to 2^30");
  }
  // In double: nothing in here may overflow.
  const double work = static_cast<double>(max_m_blocks(p, block_m_of(tiles))) * static_cast<double>(p.nheads_q);
  if (work > static_cast<double>(kMaxCount)) {
    return Status::unsupported("the problem has more than 2^29 blocks of " + std::to_string(block_m_of(tiles)) +
                               " rows; the sm90 backend counts no further");
  }
  return Status::ok();
}

// Rows see less than a band along the diagonal.
bool is_narrowed(const AttentionProblem& p) {
  return p.lo.present() || p.hi.present() || p.mask.attention_chunk > 0;
}

// Of a supported head dim.
int tiles_row(const AttentionProblem& p) {
  return find_forward_tiles(is_fp8(p), static_cast<int>(p.headdim), static_cast<int>(p.headdim_v));
}

// Which of the two kinds of instance.
bool is_general(const AttentionProblem& p) {
  return is_narrowed(p) || score_scale(p).transform != ScoreTransform::kNone;
}
ForwardTiles tiles_of(const AttentionProblem& p) {
  return forward_tiles(is_fp8(p), tiles_row(p), is_general(p), transposes(p));
}

// Of Q, K or V.
BlockScales block_scales(const Scales& scales) {
  BlockScales result;
  result.data = static_cast<const float*>(scales.data);
  result.batch_stride = scales.batch_stride;
  result.head_stride = scales.head_stride;
  result.block_stride = scales.block_stride;
  result.heads_per_scale = Divisor(static_cast<uint32_t>(scales.heads_per_scale));
  result.last_block = static_cast<int>(min_of(scales.blocks, kMaxCount)) - 1;
  return result;
}

// The tensor core's sum of e4m3 products cuts off more the longer it gets: 512 keys keep O within 0.4 % where V has a
// mean (docs/ALGORITHM.md).
constexpr int kPromotionKeys = 512;

void set_fp8(const AttentionProblem& p, const ForwardTiles& tiles, ForwardParams& params) {
  params.q_scale = block_scales(p.q_scale);
  params.k_scale = block_scales(p.k_scale);
  params.v_scale = block_scales(p.v_scale);
  const bool unit_changes = p.v_scale.blocks > 1 && tiles.sum == SumOfO::kRegisters;  // two_levels.cuh
  params.promotion_blocks = unit_changes ? 1 : kPromotionKeys / tiles.block_n;
  params.out_is_fp16 = p.out_dtype == DType::kFp16;
}

void set_masks(const AttentionProblem& p, ForwardParams& params) {
  params.mask = narrow_mask(p);
  params.band = band_mask(params.mask);
  params.narrowed = is_narrowed(p);
  params.lo = static_cast<const int*>(p.lo.data);
  params.hi = static_cast<const int*>(p.hi.data);
  params.lo_strides = row_strides(p.lo);
  params.hi_strides = row_strides(p.hi);
}

// Heads that work side by side in step on the same key blocks share them in the L2. PERF: H200, 2026-11-30, headdim 128
// causal, 4k keys: groups of 32 heads 1.03 to 1.14 against all heads at once or groups sized to the L2.
WorkOrder work_order(const AttentionProblem& p) {
  constexpr int64_t kHeadGroup = 32;
  const bool longest_first = late_rows_are_longer(p.mask);
  return {longest_first ? kHeadGroup : 1, longest_first};
}

void set_dense(const AttentionProblem& p, int block_m, ForwardParams& params) {
  params.dense_work = DenseWork(ceil_div(p.seqlen_q, block_m), p.nheads_q, p.batch, work_order(p));
  params.seqlen_q = static_cast<int>(p.seqlen_q);
  params.seqlen_k = static_cast<int>(p.seqlen_k);
  params.seqused_q = static_cast<const int*>(p.seqused_q.data);
  params.seqused_k = static_cast<const int*>(p.seqused_k.data);
  params.seqused_q_stride = p.seqused_q.stride;
  params.seqused_k_stride = p.seqused_k.stride;
}

PackedSequence* packed_sequences(ForwardWorkspace* workspace) {
  return reinterpret_cast<PackedSequence*>(workspace + 1);
}

void set_packed(const AttentionProblem& p, int block_m, ForwardPlan& plan) {
  ForwardWorkspace* const workspace = plan.params.workspace;
  plan.params.num_sequences = static_cast<int>(p.batch) + 2;
  plan.params.sequences = packed_sequences(workspace);
  plan.params.packed_work = WorkGroups(p.nheads_q, work_order(p));
  PrepareParams& prepare = plan.prepare;
  prepare.lengths = packed_lengths(p);
  prepare.block_m = block_m;
  prepare.workspace = workspace;
  prepare.sequences = packed_sequences(workspace);
}

}  // namespace

bool forward_is_empty(const AttentionProblem& p) {
  return p.total_q == 0 || p.nheads_q == 0 || map_batch(p) == 0 || p.headdim_v == 0;
}

Status forward_supports(const AttentionProblem& p) {
  TANDEM_RETURN_IF_ERROR(check_types(p));
  const auto check = is_fp8(p) ? check_fp8_headdim : check_headdim;
  TANDEM_RETURN_IF_ERROR(check("headdim", p.headdim));
  TANDEM_RETURN_IF_ERROR(check("headdim_v", p.headdim_v));
  if (forward_is_empty(p)) return Status::ok();
  const ForwardTiles tiles = tiles_of(p);
  TANDEM_RETURN_IF_ERROR(check_counts(p, tiles));
  return check_maps(tensor_maps(p, tiles));
}

ForwardPlan plan_forward(const AttentionProblem& p) {
  ForwardPlan plan;
  plan.tiles_row = tiles_row(p);
  plan.dtype = p.dtype;
  plan.general = is_general(p);
  plan.transposes = transposes(p);
  const ForwardTiles tiles = tiles_of(p);
  const int block_m = block_m_of(tiles);
  plan.max_tiles = max_m_blocks(p, block_m) * p.nheads_q;
  const Maps maps = tensor_maps(p, tiles);
  plan.q = maps.q;
  plan.k = maps.k;
  plan.v = maps.v;
  plan.out = maps.out;

  ForwardParams& params = plan.params;
  params.lse = static_cast<float*>(p.lse.data);
  params.lse_strides = row_strides(p.lse);
  params.out_data = p.out.data;
  params.out_strides = row_strides(p.out);
  params.workspace = static_cast<ForwardWorkspace*>(p.exec.workspace);
  params.nheads_q = static_cast<int>(p.nheads_q);
  params.qheads_per_khead = Divisor(static_cast<uint32_t>(p.qheads_per_khead()));
  params.sink = static_cast<const float*>(p.sink.data);
  params.sink_stride = p.sink.stride;
  params.headdim_v = static_cast<int>(p.headdim_v);
  const ScoreScale scale = score_scale(p);
  params.transform = scale.transform;
  params.score_factor = scale.factor;
  params.scale_log2 = scale.log2;
  if (is_fp8(p)) set_fp8(p, tiles, params);
  set_masks(p, params);
  if (p.packed) {
    set_packed(p, block_m, plan);
  } else {
    set_dense(p, block_m, params);
  }
  return plan;
}

Workspace forward_workspace(const AttentionProblem& p) {
  uint64_t bytes = sizeof(ForwardWorkspace);
  if (p.packed) bytes += static_cast<uint64_t>(p.batch + 2) * sizeof(PackedSequence);
  return {bytes, 16};
}

}  // namespace tandem::sm90
