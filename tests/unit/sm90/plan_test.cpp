#include "sm90/forward/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sm90/forward/tiles.h"

namespace tandem::sm90 {
namespace {

Tensor tensor(int64_t heads, int64_t rows, int64_t headdim = 128) {
  Tensor result;
  result.dtype = DType::kBf16;
  result.head_stride = headdim;
  result.row_stride = heads * headdim;
  result.batch_stride = rows * heads * headdim;
  return result;
}

AttentionProblem problem() {
  AttentionProblem p;
  p.batch = 2;
  p.nheads_q = 4;
  p.nheads_k = 2;
  p.headdim = p.headdim_v = 128;
  p.seqlen_q = p.total_q = 300;
  p.seqlen_k = p.total_k = 500;
  p.dtype = p.out_dtype = DType::kBf16;
  p.softmax_scale = 0.125;
  p.q = p.out = tensor(4, 300);
  p.k = p.v = tensor(2, 500);
  return p;
}

AttentionProblem packed_problem() {
  AttentionProblem p = problem();
  p.packed = true;
  p.seqlen_q = p.seqlen_k = 0;
  p.q.batch_stride = p.k.batch_stride = p.v.batch_stride = p.out.batch_stride = 0;
  p.cu_seqlens_q.dtype = p.cu_seqlens_k.dtype = DType::kInt32;
  return p;
}

// Sequences of few keys have up to 16 slots more than keys.
TEST(ForwardPlan, RefusesMoreSlotsThanItCounts) {
  AttentionProblem p = packed_problem();
  p.q.dtype = p.k.dtype = p.v.dtype = p.dtype = DType::kE4m3;
  p.v_transposed = true;
  p.v.row_stride = int64_t{1} << 30;
  p.v.head_stride = p.v.row_stride * 128;
  p.batch = (int64_t{1} << 26) - 500 / 16;
  EXPECT_TRUE(forward_supports(p).is_ok()) << forward_supports(p).message();
  ++p.batch;
  EXPECT_NE(forward_supports(p).message().find("slots; the sm90 backend takes up to 2^30"), std::string::npos);
}

TEST(ForwardPlan, RefusesInWordsWhatTheKernelCannotDo) {
  struct Case {
    const char* words;
    std::function<void(AttentionProblem&)> spoil;
  };
  const Case cases[] = {
      {"q, k and v are fp32", [](AttentionProblem& p) { p.dtype = DType::kFp32; }},
      {"q, k and v are e5m2", [](AttentionProblem& p) { p.dtype = DType::kE5m2; }},
      {"headdim is 200; in e4m3",
       [](AttentionProblem& p) {
         p.dtype = DType::kE4m3;
         p.out_dtype = DType::kBf16;
         p.headdim = 200;
       }},
      {"out is fp32", [](AttentionProblem& p) { p.out_dtype = DType::kFp32; }},
      {"headdim is 100", [](AttentionProblem& p) { p.headdim = 100; }},
      {"headdim_v is 4", [](AttentionProblem& p) { p.headdim_v = 4; }},
      {"more than 2^29 blocks", [](AttentionProblem& p) { p.batch = int64_t{1} << 30; }},
      {"up to 2^29", [](AttentionProblem& p) { p.total_k = p.seqlen_k = (int64_t{1} << 30) + 1; }},
      {"k: the copy engine", [](AttentionProblem& p) { p.k.row_stride = 257; }},
      {"v: the copy engine", [](AttentionProblem& p) { p.v.head_stride = 0; }},
      {"q: the copy engine", [](AttentionProblem& p) { p.q.data = reinterpret_cast<void*>(uintptr_t{8}); }},
  };
  EXPECT_TRUE(forward_supports(problem()).is_ok());
  EXPECT_TRUE(forward_supports(packed_problem()).is_ok());
  for (const Case& test : cases) {
    AttentionProblem p = problem();
    test.spoil(p);
    const Status status = forward_supports(p);
    EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED) << test.words;
    EXPECT_NE(status.message().find(test.words), std::string::npos) << status.message();
  }
}

TEST(ForwardPlan, TheSmallestTilesThatCoverBothHeadDims) {
  const auto covering = [](int64_t headdim, int64_t headdim_v) {
    AttentionProblem p = problem();
    p.headdim = headdim;
    p.headdim_v = headdim_v;
    p.q = tensor(4, 300, headdim);
    p.k = tensor(2, 500, headdim);
    p.v = tensor(2, 500, headdim_v);
    p.out = tensor(4, 300, headdim_v);
    const ForwardTiles& tiles = kForwardTiles[plan_forward(p).tiles_row];
    return std::pair{tiles.headdim, tiles.headdim_v};
  };
  EXPECT_EQ(covering(8, 8), std::pair(64, 64));
  EXPECT_EQ(covering(64, 64), std::pair(64, 64));
  EXPECT_EQ(covering(64, 72), std::pair(96, 96));
  EXPECT_EQ(covering(128, 104), std::pair(128, 128));
  EXPECT_EQ(covering(192, 128), std::pair(192, 128));
  EXPECT_EQ(covering(160, 136), std::pair(192, 192));
  EXPECT_EQ(covering(8, 256), std::pair(256, 256));
}

TEST(ForwardPlan, DescribesTheTensors) {
  const ForwardPlan plan = plan_forward(problem());
  const int block_m = kForwardTiles[plan.tiles_row].consumers * 64;
  const int m_blocks = (300 + block_m - 1) / block_m;
  EXPECT_EQ(plan.params.dense_work.m_blocks, m_blocks);
  EXPECT_EQ(plan.max_tiles, m_blocks * 4 * 2);
  EXPECT_EQ(plan.params.qheads_per_khead.divisor, 2u);
  EXPECT_EQ(plan.q.dims[1], 300);
  EXPECT_EQ(plan.q.strides_bytes[1], 4 * 128 * 2);
  EXPECT_EQ(plan.k.dims[2], 2);
  EXPECT_EQ(plan.k.strides_bytes[3], 500 * 2 * 128 * 2);
  EXPECT_EQ(plan.k.box[0], 64);
}

TEST(ForwardPlan, PackedBuffersAreOneBatchEntry) {
  const AttentionProblem p = packed_problem();
  const ForwardPlan plan = plan_forward(p);
  EXPECT_EQ(plan.q.dims[3], 1);
  EXPECT_EQ(plan.k.dims[1], 500);
  EXPECT_EQ(plan.prepare.lengths.total_q, 300);
  EXPECT_EQ(plan.params.num_sequences, 2 + 2);  // and the rows before and behind them
  const int block_m = plan.prepare.block_m;
  EXPECT_GE(plan.max_tiles, 4 * (300 / block_m + 2));  // one sequence of 299 rows and one of 1, say
  EXPECT_GE(forward_workspace(p).bytes, sizeof(ForwardWorkspace) + 4 * sizeof(PackedSequence));
}

// S to exponents of 2: transform(S) * scale_log2.
TEST(ForwardPlan, ScoresToExponents) {
  const double log2_e = 1 / std::log(2.0);
  AttentionProblem p = problem();
  EXPECT_EQ(plan_forward(p).params.transform, ScoreTransform::kNone);
  EXPECT_FLOAT_EQ(plan_forward(p).params.scale_log2, static_cast<float>(0.125 * log2_e));
  p.softcap = 30;
  EXPECT_EQ(plan_forward(p).params.transform, ScoreTransform::kSoftcap);
  EXPECT_FLOAT_EQ(plan_forward(p).params.score_factor, static_cast<float>(0.125 / 30));
  EXPECT_FLOAT_EQ(plan_forward(p).params.scale_log2, static_cast<float>(30 * log2_e));
  p.softcap = 0;
  for (const double scale : {0.0, -0.5}) {
    p.softmax_scale = scale;
    EXPECT_EQ(plan_forward(p).params.transform, ScoreTransform::kMultiply);
    EXPECT_FLOAT_EQ(plan_forward(p).params.score_factor, static_cast<float>(scale));
    EXPECT_GT(plan_forward(p).params.scale_log2, 0);
  }
}

TEST(ForwardPlan, WindowsBeyondEverythingAreOpen) {
  AttentionProblem p = problem();
  p.mask.window_left = INT64_MAX;
  p.mask.window_right = 7;
  p.mask.attention_chunk = INT64_MAX;
  const ForwardPlan plan = plan_forward(p);
  EXPECT_EQ(plan.params.mask.window_left, -1);
  EXPECT_EQ(plan.params.mask.window_right, 7);
  EXPECT_GE(plan.params.mask.attention_chunk, 300 + 500);
}

// Strides of axes of size 1 are the caller's business; the copy engine must get a legal one all the same.
TEST(ForwardPlan, AxesOfSizeOneMayHaveAnyStride) {
  AttentionProblem p = problem();
  p.batch = 1;
  p.nheads_q = p.nheads_k = 1;
  p.q.batch_stride = p.k.batch_stride = p.v.batch_stride = p.out.batch_stride = 3;
  p.q.head_stride = p.k.head_stride = p.v.head_stride = p.out.head_stride = INT64_MAX;
  EXPECT_TRUE(forward_supports(p).is_ok());
  p.seqlen_k = p.total_k = 0;
  p.k.data = p.v.data = nullptr;
  EXPECT_TRUE(forward_supports(p).is_ok());
  EXPECT_FALSE(forward_is_empty(p));
  p.seqlen_q = p.total_q = 0;
  EXPECT_TRUE(forward_is_empty(p));
}

}  // namespace
}  // namespace tandem::sm90
