#include "sm90/problem_parts.h"

#include <algorithm>
#include <cfloat>
#include <string>

namespace tandem::sm90 {
namespace {

constexpr double kLog2E = 1.4426950408889634;
// From this on a softcap of any score in range is the score itself, to the last bit of fp32.
constexpr double kLargestSoftcap = 1e12;
// Well above the subnormals, which a kernel would take for 0.
constexpr double kSmallestScale = 1e-30;

}  // namespace

// Axes of size 1 (rows, heads, batch entries) may have any stride: the copy engine never uses it, but wants a legal
// one.
TensorMapSpec head_map_spec(const Tensor& tensor, int64_t headdim, int64_t rows, int64_t heads, int64_t batch,
                            int box_rows, Swizzle panel) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  const int64_t dims[4] = {headdim, rows, heads, batch};
  const int64_t strides[4] = {1, tensor.row_stride, tensor.head_stride, tensor.batch_stride};
  TensorMapSpec spec;
  spec.base = tensor.data;
  spec.dtype = tensor.dtype;
  spec.rank = 4;
  spec.swizzle = panel;
  for (int axis = 0; axis < 4; ++axis) {
    spec.dims[axis] = dims[axis];
    spec.strides_bytes[axis] = dims[axis] == 1 ? 16 : strides[axis] * bytes;
    spec.box[axis] = 1;
  }
  spec.box[0] = static_cast<int32_t>(static_cast<int>(panel) / bytes);
  spec.box[1] = box_rows;
  return spec;
}

Status check_head_map(const char* name, const TensorMapSpec& spec) {
  const Status status = check_tensor_map(spec);
  if (status.is_ok()) return status;
  return {status.code(), std::string(name) + ": " + status.message()};
}

Status check_headdim(const char* name, int64_t headdim) {
  if (headdim % 8 == 0 && headdim <= 256) return Status::ok();
  return Status::unsupported(std::string(name) + " is " + std::to_string(headdim) +
                             "; the sm90 backend takes multiples of 8 up to 256");
}

Status check_fp8_headdim(const char* name, int64_t headdim) {
  if (headdim % 16 == 0 && headdim <= 256) return Status::ok();
  return Status::unsupported(std::string(name) + " is " + std::to_string(headdim) +
                             "; in e4m3 the sm90 backend takes multiples of 16 up to 256");
}

ScoreScale score_scale(const AttentionProblem& p) {
  if (p.softcap != 0 && p.softcap < kLargestSoftcap) {
    return {ScoreTransform::kSoftcap,
            static_cast<float>(std::clamp<double>(p.softmax_scale / p.softcap, -FLT_MAX, FLT_MAX)),
            static_cast<float>(max_of(p.softcap * kLog2E, kSmallestScale))};
  }
  // In e4m3 factors that only the device knows come in too, so its kernel takes any scale.
  if (p.softmax_scale > kSmallestScale || p.dtype == DType::kE4m3) {
    return {ScoreTransform::kNone, 1.0f, static_cast<float>(p.softmax_scale * kLog2E)};
  }
  // The order of scores is not that of exponents, or there is none.
  return {ScoreTransform::kMultiply, static_cast<float>(p.softmax_scale), static_cast<float>(kLog2E)};
}

}  // namespace tandem::sm90
