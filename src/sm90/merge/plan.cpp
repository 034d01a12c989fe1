#include "sm90/merge/plan.h"

#include <string>

namespace tandem::sm90 {
namespace {

// Whether every run of kMergeWideColumns begins at a multiple of 16 bytes. part_stride: 0 for the result.
bool has_wide_runs(const Tensor& tensor, int64_t part_stride) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  const int64_t strides = part_stride | tensor.batch_stride | tensor.row_stride | tensor.head_stride;
  return reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0 && strides * bytes % 16 == 0;
}

}  // namespace

Status merge_supports(const MergeProblem& problem) {
  const auto is_known = [](DType dtype) { return dtype == DType::kFp32 || is_16bit(dtype); };
  if (is_known(problem.out_partial.dtype) && is_known(problem.out.dtype)) return Status::ok();
  return Status::unsupported("out_partial.dtype is " + std::string(dtype_name(problem.out_partial.dtype)) +
                             "; the sm90 backend merges fp32, fp16 and bf16");
}

MergePlan plan_merge(const MergeProblem& problem) {
  const bool wide = problem.headdim_v % kMergeWideColumns == 0 &&
                    has_wide_runs(problem.out_partial, problem.out_part_stride) && has_wide_runs(problem.out, 0);
  MergePlan plan;
  plan.columns = wide ? kMergeWideColumns : 1;
  plan.runs = problem.batch * problem.rows * problem.nheads * (problem.headdim_v / plan.columns);
  return plan;
}

}  // namespace tandem::sm90
