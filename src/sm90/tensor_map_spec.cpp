#include "sm90/tensor_map_spec.h"

#include <string>

namespace tandem::sm90 {
namespace {

Status refuse(const std::string& what) {
  return Status::unsupported("the copy engine cannot address this tensor: " + what);
}

Status check_axis(const TensorMapSpec& spec, int axis) {
  constexpr int64_t kMaxDim = int64_t{1} << 32;
  constexpr int64_t kMaxStride = int64_t{1} << 40;
  const std::string name = "axis " + std::to_string(axis);
  if (spec.dims[axis] < 1 || spec.dims[axis] > kMaxDim) {
    return refuse(name + " has " + std::to_string(spec.dims[axis]) + " elements; 1 to 2^32 are allowed");
  }
  if (spec.box[axis] < 1 || spec.box[axis] > 256) {
    return refuse(name + "'s box has " + std::to_string(spec.box[axis]) + " elements; 1 to 256 are allowed");
  }
  if (axis == 0) return Status::ok();
  const int64_t stride = spec.strides_bytes[axis];
  if (stride < 1 || stride >= kMaxStride || stride % 16 != 0) {
    return refuse(name + " has a stride of " + std::to_string(stride) +
                  " bytes; positive multiples of 16 below 2^40 are allowed");
  }
  return Status::ok();
}

}  // namespace

Status check_tensor_map(const TensorMapSpec& spec) {
  const bool known_type = is_16bit(spec.dtype) || is_fp8(spec.dtype) || spec.dtype == DType::kFp32;
  if (!known_type) return refuse(std::string("element type ") + dtype_name(spec.dtype) + " is not supported");
  if (spec.rank < 2 || spec.rank > TensorMapSpec::kMaxRank) {
    return refuse("it has " + std::to_string(spec.rank) + " axes; 2 to 5 are allowed");
  }
  if (reinterpret_cast<uintptr_t>(spec.base) % 16 != 0) return refuse("its base is not a multiple of 16 bytes");
  for (int axis = 0; axis < spec.rank; ++axis) TANDEM_RETURN_IF_ERROR(check_axis(spec, axis));
  const int64_t row_bytes = spec.box[0] * dtype_bytes(spec.dtype);
  if (row_bytes > static_cast<int64_t>(spec.swizzle)) {
    return refuse("a box's row has " + std::to_string(row_bytes) + " bytes; the swizzle's " +
                  std::to_string(static_cast<int>(spec.swizzle)) + " are allowed");
  }
  if (row_bytes % 16 != 0) return refuse("a box's row is not a multiple of 16 bytes");
  return Status::ok();
}

}  // namespace tandem::sm90
