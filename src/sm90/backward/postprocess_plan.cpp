#include "sm90/backward/postprocess_plan.h"

#include "core/int_math.h"
#include "sm90/backward/layout.h"
#include "sm90/problem_parts.h"

namespace tandem::sm90 {

PostprocessPlan plan_postprocess(const AttentionProblem& p, int tiles_row) {
  const BackwardTiles& tiles = kBackwardTiles[tiles_row];
  const BackwardLayout layout = backward_layout(p, tiles);
  const BackwardBuffers buffers = backward_buffers(p, layout);
  PostprocessPlan plan;
  plan.tiles_row = tiles_row;
  plan.dtype = p.dtype;
  // The first blocks also sum up dsink, which a problem without rows has too.
  plan.blocks = p.sink.present() ? max_of(layout.max_q_blocks, p.nheads_q) : layout.max_q_blocks;
  PostprocessParams& params = plan.params;
  params.blocks = q_blocks_of(p, tiles, buffers);
  params.sums = buffers.dq;
  params.lse_log2 = buffers.lse_log2;
  params.softmax_scale = static_cast<float>(p.softmax_scale);
  params.dq = p.dq.data;
  params.dq_strides = row_strides(p.dq);
  params.headdim = static_cast<int>(p.headdim);
  params.dsink_partials = buffers.dsink_partials;
  params.dsink = static_cast<float*>(p.dsink.data);
  params.dsink_stride = p.dsink.stride;
  return plan;
}

}  // namespace tandem::sm90
