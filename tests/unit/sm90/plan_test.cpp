#include "sm90/forward/plan.h"

#include <gtest/gtest.h>

#include <functional>

namespace tandem::sm90 {
namespace {

Tensor tensor(int64_t heads, int64_t rows) {
  Tensor result;
  result.dtype = DType::kBf16;
  result.head_stride = 128;
  result.row_stride = heads * 128;
  result.batch_stride = rows * heads * 128;
  return result;
}

AttentionProblem problem() {
  AttentionProblem p;
  p.batch = 2;
  p.nheads_q = 4;
  p.nheads_k = 2;
  p.headdim = p.headdim_v = 128;
  p.seqlen_q = 300;
  p.seqlen_k = 500;
  p.dtype = p.out_dtype = DType::kBf16;
  p.q = p.out = tensor(4, 300);
  p.k = p.v = tensor(2, 500);
  return p;
}

TEST(ForwardPlan, RefusesInWordsWhatTheKernelCannotDo) {
  struct Case {
    const char* words;
    std::function<void(AttentionProblem&)> spoil;
  };
  const Case cases[] = {
      {"dense forward only", [](AttentionProblem& p) { p.backward = true; }},
      {"dense forward only", [](AttentionProblem& p) { p.packed = true; }},
      {"bf16 tensors only", [](AttentionProblem& p) { p.dtype = DType::kFp16; }},
      {"not 64", [](AttentionProblem& p) { p.headdim = 64; }},
      {"positive softmax scales", [](AttentionProblem& p) { p.softmax_scale = 0; }},
      {"without softcap", [](AttentionProblem& p) { p.softcap = 30; }},
      {"without softcap, sink", [](AttentionProblem& p) { p.sink.dtype = DType::kFp32; }},
      {"row intervals", [](AttentionProblem& p) { p.hi.dtype = DType::kInt32; }},
      {"seqused", [](AttentionProblem& p) { p.seqused_k.dtype = DType::kInt32; }},
      {"k: the copy engine", [](AttentionProblem& p) { p.k.row_stride = 257; }},
      {"v: the copy engine", [](AttentionProblem& p) { p.v.head_stride = 0; }},
  };
  EXPECT_TRUE(forward_supports(problem()).is_ok());
  for (const Case& test : cases) {
    AttentionProblem p = problem();
    test.spoil(p);
    const Status status = forward_supports(p);
    EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED) << test.words;
    EXPECT_NE(status.message().find(test.words), std::string::npos) << status.message();
  }
}

TEST(ForwardPlan, DescribesTheTensors) {
  const ForwardPlan plan = plan_forward(problem());
  EXPECT_EQ(plan.params.m_blocks, 3);
  EXPECT_EQ(plan.params.tiles, 3 * 4 * 2);
  EXPECT_EQ(plan.params.qheads_per_khead, 2);
  EXPECT_EQ(plan.q.dims[1], 300);
  EXPECT_EQ(plan.q.strides_bytes[1], 4 * 128 * 2);
  EXPECT_EQ(plan.k.dims[2], 2);
  EXPECT_EQ(plan.k.strides_bytes[3], 500 * 2 * 128 * 2);
  EXPECT_EQ(plan.k.box[0], 64);
}

// Strides of axes of size 1 are the caller's business; the copy engine must get a legal one all the same.
TEST(ForwardPlan, AxesOfSizeOneMayHaveAnyStride) {
  AttentionProblem p = problem();
  p.batch = 1;
  p.nheads_q = p.nheads_k = 1;
  p.q.batch_stride = p.k.batch_stride = p.v.batch_stride = p.out.batch_stride = 3;
  p.q.head_stride = p.k.head_stride = p.v.head_stride = p.out.head_stride = INT64_MAX;
  EXPECT_TRUE(forward_supports(p).is_ok());
  p.seqlen_k = 0;
  p.k.data = p.v.data = nullptr;
  EXPECT_TRUE(forward_supports(p).is_ok());
  p.seqlen_q = 0;
  EXPECT_EQ(forward_tiles(p), 0);
}

}  // namespace
}  // namespace tandem::sm90
