#include "sm90/backward/layout.h"

#include "core/int_math.h"
#include "sm90/problem_parts.h"

namespace tandem::sm90 {
namespace {

// Packed: each sequence, and each end of the buffer, may have one block that is cut short.
int64_t max_blocks(const AttentionProblem& p, int64_t seqlen, int64_t total, int64_t block) {
  return p.packed ? total / block + p.batch + 2 : ceil_div(seqlen, block) * p.batch;
}

bool has_intervals(const AttentionProblem& p) {
  return p.lo.present() || p.hi.present();
}

bool differs_between_heads(const RowTensor& intervals) {
  return intervals.present() && intervals.head_stride != 0;
}

// Hands out the workspace part by part.
class Parts {
 public:
  uint64_t take(int64_t elements, uint64_t bytes_of_each) {
    const uint64_t begin = end_;
    end_ += ceil_div(static_cast<uint64_t>(elements) * bytes_of_each, kBackwardAlignment) * kBackwardAlignment;
    return begin;
  }
  uint64_t end() const { return end_; }

 private:
  uint64_t end_ = 0;
};

}  // namespace

BackwardLayout backward_layout(const AttentionProblem& p, const BackwardTiles& tiles) {
  BackwardLayout layout;
  layout.max_m_blocks = max_blocks(p, p.seqlen_q, p.total_q, tiles.block_m);
  layout.max_n_blocks = max_blocks(p, p.seqlen_k, p.total_k, tiles.block_n);
  layout.max_q_blocks = layout.max_m_blocks * p.nheads_q;
  layout.heads_differ = differs_between_heads(p.lo) || differs_between_heads(p.hi);
  layout.record_heads = layout.heads_differ ? p.nheads_k : 1;
  const int64_t rows = layout.max_q_blocks * tiles.block_m;
  Parts parts;
  parts.take(1, sizeof(BackwardWorkspace));
  layout.sequences = parts.take(p.packed ? p.batch + 2 : 0, sizeof(BackwardSequence));
  layout.lse_log2 = parts.take(rows, sizeof(float));
  layout.delta = parts.take(rows, sizeof(float));
  layout.bounds = parts.take(has_intervals(p) ? layout.max_q_blocks : 0, sizeof(MBlockBounds));
  layout.dsink_partials = parts.take(p.sink.present() ? layout.max_q_blocks : 0, sizeof(float));
  layout.dq = parts.take(rows * tiles.headdim, sizeof(float));
  layout.dq_turns = parts.take(p.exec.deterministic ? layout.max_q_blocks : 0, sizeof(uint32_t));
  layout.records = parts.take(layout.max_n_blocks * layout.record_heads, sizeof(KeyBlockRecord));
  layout.bytes = parts.end();
  return layout;
}

BackwardBuffers backward_buffers(const AttentionProblem& p, const BackwardLayout& layout) {
  auto* const base = static_cast<uint8_t*>(p.exec.workspace);
  BackwardBuffers buffers;
  buffers.workspace = reinterpret_cast<BackwardWorkspace*>(base);
  if (p.packed) buffers.sequences = reinterpret_cast<BackwardSequence*>(base + layout.sequences);
  buffers.lse_log2 = reinterpret_cast<float*>(base + layout.lse_log2);
  buffers.delta = reinterpret_cast<float*>(base + layout.delta);
  if (has_intervals(p)) buffers.bounds = reinterpret_cast<MBlockBounds*>(base + layout.bounds);
  if (p.sink.present()) buffers.dsink_partials = reinterpret_cast<float*>(base + layout.dsink_partials);
  buffers.dq = reinterpret_cast<float*>(base + layout.dq);
  if (p.exec.deterministic) buffers.dq_turns = reinterpret_cast<uint32_t*>(base + layout.dq_turns);
  buffers.records = reinterpret_cast<KeyBlockRecord*>(base + layout.records);
  return buffers;
}

QBlocks q_blocks_of(const AttentionProblem& p, const BackwardTiles& tiles, const BackwardBuffers& buffers) {
  QBlocks blocks;
  blocks.nheads_q = static_cast<int>(p.nheads_q);
  if (p.packed) {
    blocks.workspace = buffers.workspace;
    blocks.sequences = buffers.sequences;
    blocks.num_sequences = static_cast<int>(p.batch) + 2;
    return blocks;
  }
  blocks.batch = static_cast<int>(p.batch);
  blocks.m_blocks = static_cast<int>(ceil_div(p.seqlen_q, tiles.block_m));
  blocks.seqlen_q = static_cast<int>(p.seqlen_q);
  blocks.seqlen_k = static_cast<int>(p.seqlen_k);
  blocks.seqused_q = device_vector(p.seqused_q);
  blocks.seqused_k = device_vector(p.seqused_k);
  return blocks;
}

}  // namespace tandem::sm90
