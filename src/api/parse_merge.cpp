#include "api/parse.h"
#include "api/tensor_rules.h"
#include "api/text.h"

namespace tandem {
namespace {

constexpr int64_t kMaxHeadDim = 256;

Status check_partial_dtypes(const MergeArguments& arguments) {
  const NamedTensor& partial = arguments.out_partial;
  TANDEM_RETURN_IF_ERROR(check_dtype(partial, {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}, partial));
  TANDEM_RETURN_IF_ERROR(
      check_dtype(arguments.out, {dtype_of(partial), DType::kFp32, DType::kFp16, DType::kBf16}, partial));
  for (const NamedTensor& statistics : {arguments.lse_partial, arguments.sink, arguments.lse}) {
    if (dtype_of(partial) == DType::kFp64) {
      TANDEM_RETURN_IF_ERROR(check_dtype(statistics, {DType::kFp32, DType::kFp64}, partial));
    } else {
      TANDEM_RETURN_IF_ERROR(check_dtype(statistics, {DType::kFp32}, statistics));
    }
  }
  return Status::ok();
}

Status check_rank(const MergeArguments& arguments) {
  const int ndim = arguments.out_partial.tensor->ndim;
  if (ndim == 4 || ndim == 5) return Status::ok();
  return Status::invalid_argument(concat("out_partial.ndim is ", ndim,
                                         "; it must be 5, (n, batch, seqlen_q, nheads_q, headdim_v), or 4, "
                                         "(n, total_q, nheads_q, headdim_v)"));
}

Status check_dense_layouts(const MergeArguments& arguments) {
  const int64_t* shape = arguments.out_partial.tensor->shape;
  TANDEM_RETURN_IF_ERROR(check_layout(
      arguments.out_partial, {{"n"}, {"batch"}, {"seqlen_q"}, {"nheads_q"}, {"headdim_v"}}, LastAxis::kContiguous));
  const Axis parts{"n", shape[0], "out_partial.shape[0]"};
  const Axis batch{"batch", shape[1], "out_partial.shape[1]"};
  const Axis rows{"seqlen_q", shape[2], "out_partial.shape[2]"};
  const Axis heads{"nheads_q", shape[3], "out_partial.shape[3]"};
  const Axis columns{"headdim_v", shape[4], "out_partial.shape[4]"};
  TANDEM_RETURN_IF_ERROR(check_layout(arguments.lse_partial, {parts, batch, heads, rows}, LastAxis::kAnyStride));
  TANDEM_RETURN_IF_ERROR(check_layout(arguments.sink, {heads}, LastAxis::kAnyStride));
  TANDEM_RETURN_IF_ERROR(check_layout(arguments.out, {batch, rows, heads, columns}, LastAxis::kContiguous));
  return check_layout(arguments.lse, {batch, heads, rows}, LastAxis::kAnyStride);
}

Status check_packed_layouts(const MergeArguments& arguments) {
  const int64_t* shape = arguments.out_partial.tensor->shape;
  TANDEM_RETURN_IF_ERROR(
      check_layout(arguments.out_partial, {{"n"}, {"total_q"}, {"nheads_q"}, {"headdim_v"}}, LastAxis::kContiguous));
  const Axis parts{"n", shape[0], "out_partial.shape[0]"};
  const Axis rows{"total_q", shape[1], "out_partial.shape[1]"};
  const Axis heads{"nheads_q", shape[2], "out_partial.shape[2]"};
  const Axis columns{"headdim_v", shape[3], "out_partial.shape[3]"};
  TANDEM_RETURN_IF_ERROR(check_layout(arguments.lse_partial, {parts, heads, rows}, LastAxis::kAnyStride));
  TANDEM_RETURN_IF_ERROR(check_layout(arguments.sink, {heads}, LastAxis::kAnyStride));
  TANDEM_RETURN_IF_ERROR(check_layout(arguments.out, {rows, heads, columns}, LastAxis::kContiguous));
  return check_layout(arguments.lse, {heads, rows}, LastAxis::kAnyStride);
}

Status check_headdim(const MergeArguments& arguments) {
  const tandem_tensor& partial = *arguments.out_partial.tensor;
  const int last = partial.ndim - 1;
  if (partial.shape[last] >= 1 && partial.shape[last] <= kMaxHeadDim) return Status::ok();
  return Status::invalid_argument(
      concat("out_partial.shape[", last, "] is ", partial.shape[last], "; head dims may be 1 to ", kMaxHeadDim));
}

}  // namespace

Status parse(const MergeArguments& arguments, MergeProblem* problem) {
  TANDEM_RETURN_IF_ERROR(parse_execution(*arguments.exec, &problem->exec));
  for (const NamedTensor& required : {arguments.out_partial, arguments.lse_partial, arguments.out}) {
    TANDEM_RETURN_IF_ERROR(check_required(required));
  }
  TANDEM_RETURN_IF_ERROR(check_partial_dtypes(arguments));
  TANDEM_RETURN_IF_ERROR(check_rank(arguments));
  const tandem_tensor& partial = *arguments.out_partial.tensor;
  const bool packed = partial.ndim == 4;
  TANDEM_RETURN_IF_ERROR(packed ? check_packed_layouts(arguments) : check_dense_layouts(arguments));
  TANDEM_RETURN_IF_ERROR(check_headdim(arguments));

  const int row = packed ? 1 : 2;
  problem->parts = partial.shape[0];
  problem->batch = packed ? 1 : partial.shape[1];
  problem->rows = partial.shape[row];
  problem->nheads = partial.shape[row + 1];
  problem->headdim_v = partial.shape[row + 2];
  problem->out_partial = make_tensor(arguments.out_partial, packed, 1);
  problem->out_part_stride = axis_stride(partial, 0);
  problem->lse_partial = make_row_tensor(arguments.lse_partial, packed, 1);
  problem->lse_part_stride = axis_stride(*arguments.lse_partial.tensor, 0);
  problem->sink = make_vector(arguments.sink);
  problem->out = make_tensor(arguments.out, packed);
  problem->lse = make_row_tensor(arguments.lse, packed);
  return Status::ok();
}

}  // namespace tandem
