#include "sm90/backward/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <tuple>

#include "sm90/backward/tiles.h"

namespace tandem::sm90 {
namespace {

Tensor tensor(int64_t heads, int64_t rows, int64_t headdim) {
  Tensor result;
  result.dtype = DType::kBf16;
  result.head_stride = headdim;
  result.row_stride = heads * headdim;
  result.batch_stride = rows * heads * headdim;
  return result;
}

AttentionProblem problem(int64_t headdim = 128, int64_t headdim_v = 128) {
  AttentionProblem p;
  p.backward = true;
  p.batch = 2;
  p.nheads_q = 4;
  p.nheads_k = 2;
  p.headdim = headdim;
  p.headdim_v = headdim_v;
  p.seqlen_q = p.total_q = 300;
  p.seqlen_k = p.total_k = 500;
  p.dtype = p.out_dtype = DType::kBf16;
  p.softmax_scale = 0.125;
  p.q = p.dq = tensor(4, 300, headdim);
  p.out = p.dout = tensor(4, 300, headdim_v);
  p.k = p.dk = tensor(2, 500, headdim);
  p.v = p.dv = tensor(2, 500, headdim_v);
  p.lse.dtype = DType::kFp32;
  return p;
}

AttentionProblem packed_problem() {
  AttentionProblem p = problem();
  p.packed = true;
  p.seqlen_q = p.seqlen_k = 0;
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) t->batch_stride = 0;
  p.cu_seqlens_q.dtype = p.cu_seqlens_k.dtype = DType::kInt32;
  return p;
}

AttentionProblem with_sink(AttentionProblem p) {
  p.sink.dtype = p.dsink.dtype = DType::kFp32;
  return p;
}

TEST(BackwardPlan, RefusesInWordsWhatTheKernelsCannotDo) {
  struct Case {
    const char* words;
    std::function<void(AttentionProblem&)> spoil;
  };
  void* const odd = reinterpret_cast<void*>(uintptr_t{8});
  const Case cases[] = {
      {"q, k and v are fp32", [](AttentionProblem& p) { p.dtype = DType::kFp32; }},
      {"q, k and v are e4m3", [](AttentionProblem& p) { p.dtype = DType::kE4m3; }},
      {"out is fp32", [](AttentionProblem& p) { p.out_dtype = DType::kFp32; }},
      {"headdim is 100", [](AttentionProblem& p) { p.headdim = 100; }},
      {"headdim_v is 4", [](AttentionProblem& p) { p.headdim_v = 4; }},
      {"more than 2^29 blocks", [](AttentionProblem& p) { p.batch = int64_t{1} << 30; }},
      {"up to 2^29", [](AttentionProblem& p) { p.total_k = p.seqlen_k = (int64_t{1} << 30) + 1; }},
      {"k: the copy engine", [](AttentionProblem& p) { p.k.row_stride = 257; }},
      {"v: the copy engine", [](AttentionProblem& p) { p.v.head_stride = 0; }},
      {"q: the copy engine", [=](AttentionProblem& p) { p.q.data = odd; }},
      {"out: the copy engine", [=](AttentionProblem& p) { p.out.data = odd; }},
      {"dout: the copy engine", [](AttentionProblem& p) { p.dout.row_stride = 4 * 128 + 4; }},
      {"dq: the copy engine", [=](AttentionProblem& p) { p.dq.data = odd; }},
      {"dk: the copy engine", [](AttentionProblem& p) { p.dk.head_stride = 132; }},
      {"dv: the copy engine", [=](AttentionProblem& p) { p.dv.data = odd; }},
  };
  EXPECT_TRUE(backward_supports(problem()).is_ok());
  EXPECT_TRUE(backward_supports(packed_problem()).is_ok());
  for (const Case& test : cases) {
    AttentionProblem p = problem();
    test.spoil(p);
    const Status status = backward_supports(p);
    EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED) << test.words;
    EXPECT_NE(status.message().find(test.words), std::string::npos) << status.message();
  }
}

TEST(BackwardPlan, DeterministicAtEveryHeaddim) {
  for (const int64_t headdim : {8, 64, 96, 128, 192, 256}) {
    AttentionProblem p = problem(headdim, headdim);
    p.exec.deterministic = true;
    EXPECT_TRUE(backward_supports(p).is_ok()) << headdim << ": " << backward_supports(p).message();
  }
}

// One block of the kernel that hands out turns for each sequence, and key head where intervals differ.
TEST(BackwardPlan, FirstTurns) {
  AttentionProblem p = problem();
  EXPECT_EQ(plan_backward(p).first_turns_blocks, 0);
  EXPECT_EQ(plan_backward(p).params.dq_turns, nullptr);
  p.exec.deterministic = true;
  p.exec.workspace = reinterpret_cast<void*>(uintptr_t{1} << 20);
  const BackwardPlan plan = plan_backward(p);
  EXPECT_EQ(plan.first_turns_blocks, 2);
  EXPECT_NE(plan.params.dq_turns, nullptr);
  EXPECT_EQ(plan.key_blocks.problem.dq_turns, plan.params.dq_turns);
  p.lo.dtype = DType::kInt32;
  p.lo.head_stride = 300;
  EXPECT_EQ(plan_backward(p).first_turns_blocks, 4);
  AttentionProblem packed = packed_problem();
  packed.exec.deterministic = true;
  EXPECT_EQ(plan_backward(packed).first_turns_blocks, 4);
}

TEST(BackwardPlan, TheSmallestTilesThatCoverBothHeadDims) {
  const auto covering = [](int64_t headdim, int64_t headdim_v, double softcap = 0) {
    AttentionProblem p = problem(headdim, headdim_v);
    p.softcap = softcap;
    const BackwardTiles& tiles = kBackwardTiles[plan_backward(p).tiles_row];
    return std::pair{tiles.headdim, tiles.headdim_v};
  };
  EXPECT_EQ(covering(8, 64), std::pair(64, 64));
  EXPECT_EQ(covering(64, 72), std::pair(96, 96));
  EXPECT_EQ(covering(104, 64), std::pair(128, 128));
  EXPECT_EQ(covering(128, 8), std::pair(128, 128));
  EXPECT_EQ(covering(136, 72), std::pair(192, 128));
  EXPECT_EQ(covering(192, 136), std::pair(192, 192));
  EXPECT_EQ(covering(64, 256), std::pair(256, 256));
  // Not all have general instances.
  EXPECT_EQ(covering(64, 64, 30), std::pair(128, 128));
  EXPECT_EQ(covering(96, 96, 30), std::pair(128, 128));
  EXPECT_EQ(covering(192, 128, 30), std::pair(256, 256));
}

TEST(BackwardPlan, GeneralInstances) {
  const auto is_general = [](const std::function<void(AttentionProblem&)>& change) {
    AttentionProblem p = problem();
    change(p);
    return plan_backward(p).general;
  };
  EXPECT_FALSE(is_general([](AttentionProblem& p) { p.mask.causal = true; }));
  EXPECT_FALSE(is_general([](AttentionProblem& p) { p.seqused_k.dtype = DType::kInt32; }));
  EXPECT_TRUE(is_general([](AttentionProblem& p) { p.lo.dtype = DType::kInt32; }));
  EXPECT_TRUE(is_general([](AttentionProblem& p) { p.hi.dtype = DType::kInt32; }));
  EXPECT_TRUE(is_general([](AttentionProblem& p) { p.softcap = 30; }));
  EXPECT_TRUE(is_general([](AttentionProblem& p) { p.softmax_scale = -1; }));
  EXPECT_TRUE(is_general([](AttentionProblem& p) { p.softmax_scale = 0; }));
}

TEST(BackwardPlan, DescribesTheTensors) {
  const BackwardPlan plan = plan_backward(problem());
  const BackwardTiles& tiles = kBackwardTiles[plan.tiles_row];
  const int64_t n_blocks = (500 + tiles.block_n - 1) / tiles.block_n;
  EXPECT_EQ(plan.max_tiles, n_blocks * 2 * 2);
  EXPECT_EQ(plan.max_records, n_blocks * 2);
  EXPECT_EQ(plan.q.box[1], tiles.block_m);
  EXPECT_EQ(plan.dout.dims[1], 300);
  EXPECT_EQ(plan.k.box[1], tiles.block_n);
  EXPECT_EQ(plan.v.dims[2], 2);
  EXPECT_EQ(plan.dk.box[1], 64);
  EXPECT_EQ(plan.dv.strides_bytes[3], 500 * 2 * 128 * 2);
  EXPECT_EQ(plan.params.qheads_per_khead, 2);
  EXPECT_EQ(plan.key_blocks.dense_m_blocks, (300 + tiles.block_m - 1) / tiles.block_m);
  EXPECT_EQ(plan.key_blocks.dense_key_blocks, n_blocks * 2);
}

TEST(BackwardPlan, PackedBuffersAreOneBatchEntry) {
  const BackwardPlan plan = plan_backward(packed_problem());
  const BackwardTiles& tiles = kBackwardTiles[plan.tiles_row];
  EXPECT_EQ(plan.q.dims[3], 1);
  EXPECT_EQ(plan.k.dims[1], 500);
  EXPECT_EQ(plan.params.num_sequences, 2 + 2);           // and the rows before and behind them
  EXPECT_EQ(plan.max_records, 500 / tiles.block_n + 4);  // each of these may end in a block of its own
  EXPECT_EQ(plan.max_tiles, plan.max_records * 2);
  EXPECT_EQ(plan.key_blocks.dense_key_blocks, 0);
}

// Then each key head has records of its own.
TEST(BackwardPlan, IntervalsThatDifferBetweenHeads) {
  AttentionProblem p = problem();
  p.lo.dtype = DType::kInt32;
  p.lo.row_stride = 1;
  const int64_t shared = plan_backward(p).max_records;
  p.lo.head_stride = 300;
  const BackwardPlan plan = plan_backward(p);
  EXPECT_EQ(plan.params.record_heads, 2);
  EXPECT_EQ(plan.max_records, 2 * shared);
}

std::tuple<int, int, int> tile(const BackwardPlan& plan, int index) {
  const BasicWorkTile<int> work = plan.params.dense_work.tile(index);
  return {work.m_block, work.head, work.batch};  // an m_block of its order is an n_block
}

TEST(BackwardPlan, EveryTileOnce) {
  for (const bool causal : {false, true}) {
    AttentionProblem p = problem();
    p.mask.causal = causal;
    const BackwardPlan plan = plan_backward(p);
    std::set<std::tuple<int, int, int>> tiles;
    for (int i = 0; i < plan.max_tiles; ++i) tiles.insert(tile(plan, i));
    EXPECT_EQ(static_cast<int64_t>(tiles.size()), plan.max_tiles);
    EXPECT_EQ(plan.params.dense_work.tiles, plan.max_tiles);
  }
}

// Without a mask head by head; under a causal one the early keys, which the most rows see, of all heads that fit L2
// come first.
TEST(BackwardPlan, LongTilesFirst) {
  AttentionProblem p = problem();
  BackwardPlan plan = plan_backward(p);
  EXPECT_EQ(tile(plan, 0), std::tuple(0, 0, 0));
  EXPECT_EQ(tile(plan, 1), std::tuple(1, 0, 0));
  p.mask.causal = true;
  plan = plan_backward(p);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tile(plan, i), std::tuple(0, i % 2, i / 2));
  EXPECT_EQ(tile(plan, 4), std::tuple(1, 0, 0));
  // 16 key heads' Q, dO and dQ at 4096 rows, 67 MB, do not fit: half of them at a time.
  p = problem();
  p.mask.causal = true;
  p.batch = 1;
  p.nheads_q = p.nheads_k = 16;
  p.seqlen_q = p.total_q = 4096;
  plan = plan_backward(p);
  EXPECT_EQ(tile(plan, 7), std::tuple(0, 7, 0));
  EXPECT_EQ(tile(plan, 8), std::tuple(1, 0, 0));
}

// Deterministic, tiles of as many heads as fit L2 lie between two of the same head, which would wait for each other.
TEST(BackwardPlan, DeterministicTilesOfOneHeadFarApart) {
  AttentionProblem p = problem();
  p.exec.deterministic = true;
  const BackwardPlan plan = plan_backward(p);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tile(plan, i), std::tuple(0, i % 2, i / 2));
  EXPECT_EQ(tile(plan, 4), std::tuple(1, 0, 0));
}

// What docs/SCHEDULE.md says: for each row of each query head 8 bytes and 4 for each column, 80 for each n_block.
TEST(BackwardPlan, WorkspaceBytes) {
  AttentionProblem p = problem();
  p.seqlen_q = p.total_q = 1024;
  p.seqlen_k = p.total_k = 1024;
  const BackwardTiles& tiles = kBackwardTiles[plan_backward(p).tiles_row];
  const uint64_t rows = 2 * 4 * 1024;
  const uint64_t records = 2 * 1024 / static_cast<uint64_t>(tiles.block_n);
  const Workspace workspace = backward_workspace(p);
  EXPECT_EQ(workspace.alignment, 256u);
  EXPECT_GE(workspace.bytes, 16 + rows * (8 + 4 * 128) + records * 80);
  EXPECT_LT(workspace.bytes, 16 + rows * (8 + 4 * 128) + records * 80 + 5 * 256);
}

TEST(BackwardPlan, WithoutRowsAndKeys) {
  AttentionProblem p = problem();
  p.seqlen_q = p.total_q = p.seqlen_k = p.total_k = 0;
  EXPECT_TRUE(backward_is_empty(p));
  EXPECT_EQ(backward_workspace(p).bytes, 0u);
  p = with_sink(p);  // dsink is 0, and must be written
  EXPECT_TRUE(backward_supports(p).is_ok());
  EXPECT_FALSE(backward_is_empty(p));
  const BackwardPlan plan = plan_backward(p);
  EXPECT_EQ(plan.max_tiles, 0);
  EXPECT_EQ(plan.postprocess.blocks, 4);
  EXPECT_GT(backward_workspace(p).bytes, 0u);
  p.nheads_q = p.nheads_k = 0;
  EXPECT_TRUE(backward_is_empty(p));
}

// dK and dV are 0, and must be written.
TEST(BackwardPlan, WithoutQueryHeads) {
  AttentionProblem p = problem();
  p.nheads_q = 0;
  ASSERT_TRUE(backward_supports(p).is_ok()) << backward_supports(p).message();
  EXPECT_FALSE(backward_is_empty(p));
  const BackwardPlan plan = plan_backward(p);
  EXPECT_GT(plan.max_tiles, 0);
  EXPECT_EQ(plan.postprocess.blocks, 0);
  EXPECT_EQ(plan.q.dims[2], p.nheads_k);
}

TEST(BackwardPlan, WithoutBatchEntries) {
  AttentionProblem p = with_sink(problem());
  p.batch = 0;
  EXPECT_TRUE(backward_supports(p).is_ok());
  const BackwardPlan plan = plan_backward(p);
  EXPECT_EQ(plan.max_tiles, 0);
  EXPECT_EQ(plan.postprocess.blocks, 4);
}

// The gradients of the other side are 0, and must be written; the missing tensors' maps must be legal all the same.
TEST(BackwardPlan, WithoutRowsOrWithoutKeys) {
  AttentionProblem without_rows = problem();
  without_rows.seqlen_q = without_rows.total_q = 0;
  ASSERT_TRUE(backward_supports(without_rows).is_ok());
  const BackwardPlan keys_only = plan_backward(without_rows);
  EXPECT_GT(keys_only.max_tiles, 0);
  EXPECT_EQ(keys_only.postprocess.blocks, 0);
  EXPECT_EQ(keys_only.q.dims[1], 500);
  AttentionProblem without_keys = problem();
  without_keys.seqlen_k = without_keys.total_k = 0;
  ASSERT_TRUE(backward_supports(without_keys).is_ok());
  const BackwardPlan rows_only = plan_backward(without_keys);
  EXPECT_EQ(rows_only.max_tiles, 0);
  EXPECT_GT(rows_only.postprocess.blocks, 0);
}

}  // namespace
}  // namespace tandem::sm90
