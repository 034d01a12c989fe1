#include "sm90/merge/plan.h"

#include <gtest/gtest.h>

#include <functional>

namespace tandem::sm90 {
namespace {

// 3 parts of 2 x 5 rows of 4 heads, fp32 to bf16.
MergeProblem problem() {
  MergeProblem p;
  p.parts = 3;
  p.batch = 2;
  p.rows = 5;
  p.nheads = 4;
  p.headdim_v = 64;
  p.out_partial.dtype = DType::kFp32;
  p.out.dtype = DType::kBf16;
  p.out_partial.head_stride = p.out.head_stride = 64;
  p.out_partial.row_stride = p.out.row_stride = 256;
  p.out_partial.batch_stride = p.out.batch_stride = 1280;
  p.out_part_stride = 2560;
  return p;
}

TEST(MergePlan, RunsOfEightColumnsWhereTheyAreAligned) {
  EXPECT_EQ(plan_merge(problem()).columns, 8);
  EXPECT_EQ(plan_merge(problem()).runs, 2 * 5 * 4 * 8);
  const std::function<void(MergeProblem&)> changes[] = {
      [](MergeProblem& p) { p.headdim_v = 60; },
      [](MergeProblem& p) { p.out_part_stride = 2562; },
      [](MergeProblem& p) { p.out_partial.head_stride = 65; },
      [](MergeProblem& p) { p.out.row_stride = 260; },
      [](MergeProblem& p) { p.out.data = reinterpret_cast<void*>(uintptr_t{8}); },
      [](MergeProblem& p) { p.out_partial.data = reinterpret_cast<void*>(uintptr_t{4}); },
  };
  for (const auto& change : changes) {
    MergeProblem p = problem();
    change(p);
    const MergePlan plan = plan_merge(p);
    EXPECT_EQ(plan.columns, 1);
    EXPECT_EQ(plan.runs, 2 * 5 * 4 * p.headdim_v);
  }
  MergeProblem empty = problem();
  empty.batch = 0;
  EXPECT_EQ(plan_merge(empty).runs, 0);
}

TEST(MergePlan, Types) {
  for (const DType in : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (const DType out : {DType::kFp32, DType::kFp16, DType::kBf16}) {
      MergeProblem p = problem();
      p.out_partial.dtype = in;
      p.out.dtype = out;
      EXPECT_TRUE(merge_supports(p).is_ok());
    }
  }
  MergeProblem p = problem();
  p.out_partial.dtype = DType::kFp64;
  EXPECT_EQ(merge_supports(p).code(), TANDEM_UNSUPPORTED);
  EXPECT_EQ(merge_supports(p).message(), "out_partial.dtype is fp64; the sm90 backend merges fp32, fp16 and bf16");
}

}  // namespace
}  // namespace tandem::sm90
