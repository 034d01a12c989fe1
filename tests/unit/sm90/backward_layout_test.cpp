#include "sm90/backward/layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "sm90/backward/postprocess_plan.h"
#include "sm90/backward/preprocess_plan.h"

namespace tandem::sm90 {
namespace {

constexpr int kRow = find_backward_tiles(128, 128, false);
constexpr BackwardTiles kTiles = kBackwardTiles[kRow];

AttentionProblem problem() {
  AttentionProblem p;
  p.backward = true;
  p.batch = 3;
  p.nheads_q = p.nheads_k = 4;
  p.headdim = p.headdim_v = kTiles.headdim - 8;
  p.seqlen_q = p.total_q = kTiles.block_m * 5 + 1;
  p.seqlen_k = p.total_k = kTiles.block_n * 2 + 1;
  p.dtype = p.out_dtype = DType::kBf16;
  p.exec.workspace = reinterpret_cast<void*>(uintptr_t{1} << 20);
  return p;
}

AttentionProblem packed_problem() {
  AttentionProblem p = problem();
  p.packed = true;
  p.seqlen_q = p.seqlen_k = 0;
  p.cu_seqlens_q.dtype = p.cu_seqlens_k.dtype = DType::kInt32;
  return p;
}

AttentionProblem with_everything(AttentionProblem p) {
  p.lo.dtype = DType::kInt32;
  p.sink.dtype = p.dsink.dtype = DType::kFp32;
  return p;
}

// Each part is aligned, as large as it must be, and ends before the next begins.
void expect_parts(const AttentionProblem& p) {
  const BackwardLayout layout = backward_layout(p, kTiles);
  const auto q_blocks = static_cast<uint64_t>(layout.max_q_blocks);
  const auto rows = q_blocks * kTiles.block_m;
  struct Part {
    uint64_t begin, bytes;
  };
  const std::vector<Part> parts = {
      {0, 16},
      {layout.sequences, p.packed ? static_cast<uint64_t>(p.batch + 2) * 32 : 0},
      {layout.lse_log2, rows * 4},
      {layout.delta, rows * 4},
      {layout.bounds, p.lo.present() ? q_blocks * 16 : 0},
      {layout.dsink_partials, p.sink.present() ? q_blocks * 4 : 0},
      {layout.dq, rows * kTiles.headdim * 4},
      {layout.dq_turns, p.exec.deterministic ? q_blocks * 4 : 0},
      {layout.records, static_cast<uint64_t>(layout.max_n_blocks) * 80},
      {layout.bytes, 0},
  };
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    EXPECT_EQ(parts[i].begin % 256, 0u) << i;
    EXPECT_LE(parts[i].begin + parts[i].bytes, parts[i + 1].begin) << i;
    EXPECT_LT(parts[i + 1].begin, parts[i].begin + parts[i].bytes + 256) << i;
  }
}

TEST(BackwardLayout, PartsFollowEachOther) {
  expect_parts(problem());
  expect_parts(packed_problem());
  expect_parts(with_everything(problem()));
  expect_parts(with_everything(packed_problem()));
  AttentionProblem deterministic = with_everything(packed_problem());
  deterministic.exec.deterministic = true;
  expect_parts(deterministic);
}

TEST(BackwardLayout, CountsBlocks) {
  const BackwardLayout dense = backward_layout(problem(), kTiles);
  EXPECT_EQ(dense.max_m_blocks, 6 * 3);
  EXPECT_EQ(dense.max_n_blocks, 3 * 3);
  EXPECT_EQ(dense.max_q_blocks, 6 * 3 * 4);
  // Three sequences of one row more than a block, or the ends of the buffer: each may add a block that is cut short.
  const BackwardLayout packed = backward_layout(packed_problem(), kTiles);
  EXPECT_EQ(packed.max_m_blocks, 5 + 3 + 2);
  EXPECT_EQ(packed.max_n_blocks, 2 + 3 + 2);
}

TEST(BackwardLayout, BeyondThirtyTwoBits) {
  AttentionProblem p = problem();
  p.seqlen_q = p.total_q = int64_t{1} << 26;
  const BackwardLayout layout = backward_layout(p, kTiles);
  EXPECT_EQ(layout.records - layout.dq, (uint64_t{1} << 26) * 3 * 4 * kTiles.headdim * 4);
}

TEST(BackwardLayout, PartsThatTheProblemLacksAreNull) {
  const AttentionProblem dense = problem();
  const BackwardBuffers few = backward_buffers(dense, backward_layout(dense, kTiles));
  EXPECT_EQ(few.workspace, dense.exec.workspace);
  EXPECT_EQ(few.sequences, nullptr);
  EXPECT_EQ(few.bounds, nullptr);
  EXPECT_EQ(few.dsink_partials, nullptr);
  EXPECT_EQ(few.dq_turns, nullptr);
  const AttentionProblem packed = with_everything(packed_problem());
  const BackwardBuffers all = backward_buffers(packed, backward_layout(packed, kTiles));
  EXPECT_NE(all.sequences, nullptr);
  EXPECT_NE(all.bounds, nullptr);
  EXPECT_NE(all.dsink_partials, nullptr);
}

TEST(BackwardPlans, GridsCoverEveryQBlock) {
  const AttentionProblem p = problem();
  EXPECT_EQ(plan_preprocess(p, kRow).blocks, 6 * 3 * 4);
  EXPECT_EQ(plan_postprocess(p, kRow).blocks, 6 * 3 * 4);
  EXPECT_EQ(plan_preprocess(p, kRow).params.blocks.m_blocks, 6);
  EXPECT_EQ(plan_preprocess(packed_problem(), kRow).blocks, 10 * 4);
  EXPECT_EQ(plan_preprocess(packed_problem(), kRow).params.blocks.num_sequences, 3 + 2);
}

// The counter must be cleared for the keys' sake, and dsink is 0.
TEST(BackwardPlans, WithoutRows) {
  AttentionProblem p = problem();
  p.seqlen_q = p.total_q = 0;
  EXPECT_EQ(plan_preprocess(p, kRow).blocks, 1);
  EXPECT_EQ(plan_postprocess(p, kRow).blocks, 0);
  EXPECT_EQ(plan_postprocess(with_everything(p), kRow).blocks, 4);
}

}  // namespace
}  // namespace tandem::sm90
