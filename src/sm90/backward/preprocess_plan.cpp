#include "sm90/backward/preprocess_plan.h"

#include "core/int_math.h"
#include "sm90/backward/layout.h"
#include "sm90/problem_parts.h"

namespace tandem::sm90 {
namespace {

void set_tensors(const AttentionProblem& p, PreprocessParams& params) {
  params.out = p.out.data;
  params.dout = p.dout.data;
  params.out_strides = row_strides(p.out);
  params.dout_strides = row_strides(p.dout);
  params.headdim_v = static_cast<int>(p.headdim_v);
  params.lse = static_cast<const float*>(p.lse.data);
  params.dlse = static_cast<const float*>(p.dlse.data);
  params.lse_strides = row_strides(p.lse);
  params.dlse_strides = row_strides(p.dlse);
  params.sink = static_cast<const float*>(p.sink.data);
  params.sink_stride = p.sink.stride;
}

void set_masks(const AttentionProblem& p, PreprocessParams& params) {
  params.mask = narrow_mask(p);
  params.lo = static_cast<const int*>(p.lo.data);
  params.hi = static_cast<const int*>(p.hi.data);
  params.lo_strides = row_strides(p.lo);
  params.hi_strides = row_strides(p.hi);
}

void set_results(const BackwardBuffers& buffers, PreprocessParams& params) {
  params.workspace = buffers.workspace;
  params.lse_log2 = buffers.lse_log2;
  params.delta = buffers.delta;
  params.bounds = buffers.bounds;
  params.dsink_partials = buffers.dsink_partials;
  params.dq = buffers.dq;
}

}  // namespace

PreprocessPlan plan_preprocess(const AttentionProblem& p, int tiles_row) {
  const BackwardTiles& tiles = kBackwardTiles[tiles_row];
  const BackwardLayout layout = backward_layout(p, tiles);
  const BackwardBuffers buffers = backward_buffers(p, layout);
  PreprocessPlan plan;
  plan.tiles_row = tiles_row;
  plan.dtype = p.dtype;
  plan.packed = p.packed;
  plan.blocks = max_of(layout.max_q_blocks, 1);  // the first also clears a dense problem's counter
  plan.smem_bytes = static_cast<uint32_t>(tiles.block_m) * sizeof(float);
  plan.params.blocks = q_blocks_of(p, tiles, buffers);
  set_tensors(p, plan.params);
  set_masks(p, plan.params);
  set_results(buffers, plan.params);
  if (p.packed) plan.prepare = {packed_lengths(p), tiles.block_m, tiles.block_n, buffers.workspace, buffers.sequences};
  return plan;
}

}  // namespace tandem::sm90
