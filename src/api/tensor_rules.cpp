#include "api/tensor_rules.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/fp8.h"
#include "core/int_math.h"

namespace tandem {
namespace {

std::string axis_list(std::initializer_list<Axis> axes) {
  std::string text = "(";
  for (const Axis& axis : axes) {
    if (text.size() > 1) text += ", ";
    text += axis.meaning;
    if (axis.broadcasts) text += " or 1";
  }
  return text + ")";
}

std::string dtype_text(int32_t dtype) {
  return dtype >= 0 && dtype <= TANDEM_INT32 ? dtype_name(static_cast<DType>(dtype)) : concat("unknown (", dtype, ")");
}

Status check_absent(const NamedTensor& named) {
  const tandem_tensor& tensor = *named.tensor;
  if (tensor.data == nullptr && tensor.dtype == TANDEM_DTYPE_NONE) return Status::ok();
  return Status::invalid_argument(concat(named.name, ".ndim is 0 but ", named.name,
                                         tensor.data ? ".data is not NULL" : ".dtype is set",
                                         "; an absent tensor is all zero"));
}

Status check_shape(const NamedTensor& named, std::initializer_list<Axis> axes) {
  int i = 0;
  for (const Axis& axis : axes) {
    const int64_t size = named.tensor->shape[i];
    if (size < 0 || size > kMaxAxisSize) {
      return Status::invalid_argument(
          concat(named.name, ".shape[", i, "] (", axis.meaning, ") is ", size, "; allowed are 0 to 2147483647"));
    }
    if (axis.size != Axis::kAny && size != axis.size && !(axis.broadcasts && size == 1)) {
      return Status::invalid_argument(concat(named.name, ".shape[", i, "] is ", size, "; it must be ", axis.size,
                                             axis.broadcasts ? " or 1" : "", ", the ", axis.meaning, " of ",
                                             axis.source));
    }
    ++i;
  }
  return Status::ok();
}

// That the tensor's elements can be counted, and their offsets computed, in 64 bits of bytes.
Status check_extent(const NamedTensor& named) {
  const tandem_tensor& tensor = *named.tensor;
  int64_t count = dtype_bytes(static_cast<DType>(tensor.dtype));
  int64_t last_offset = 0;  // in elements, of the last element
  bool overflow = false;
  for (int i = 0; i < tensor.ndim; ++i) {
    int64_t along_axis = 0;
    overflow |= __builtin_mul_overflow(count, tensor.shape[i], &count);
    overflow |= __builtin_mul_overflow(tensor.shape[i] - 1, axis_stride(tensor, i), &along_axis);
    overflow |= __builtin_add_overflow(last_offset, along_axis, &last_offset);
  }
  int64_t bytes = 0;
  overflow |= __builtin_mul_overflow(last_offset, dtype_bytes(static_cast<DType>(tensor.dtype)), &bytes);
  if (!overflow) return Status::ok();
  return Status::invalid_argument(
      concat(named.name, ".shape and ", named.name, ".stride span more than 2^63 - 1 bytes; offsets are 64-bit"));
}

// An output may be a transposed or an interleaved view, but no two of its elements may share memory. Refuses every
// layout in which an axis does not step over all of the axes with smaller strides.
Status check_no_self_overlap(const NamedTensor& named) {
  const tandem_tensor& tensor = *named.tensor;
  std::vector<int> order;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] > 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return tensor.stride[a] < tensor.stride[b]; });
  int64_t inner_extent = 1;  // elements from the first to the last of the axes walked so far
  for (const int axis : order) {
    if (tensor.stride[axis] < inner_extent) {
      return Status::invalid_argument(concat(named.name, ".stride[", axis, "] is ", tensor.stride[axis],
                                             "; it must be at least ", inner_extent,
                                             ", since elements of an output must not overlap"));
    }
    inner_extent += (tensor.shape[axis] - 1) * tensor.stride[axis];
  }
  return Status::ok();
}

Status check_strides(const NamedTensor& named, LastAxis last_axis) {
  const tandem_tensor& tensor = *named.tensor;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] > 1 && tensor.stride[i] < 0) {
      return Status::invalid_argument(
          concat(named.name, ".stride[", i, "] is ", tensor.stride[i], "; strides are never negative"));
    }
  }
  if (!has_elements(tensor)) return Status::ok();
  const int last = tensor.ndim - 1;
  if (last_axis == LastAxis::kContiguous && tensor.shape[last] > 1 && tensor.stride[last] != 1) {
    return Status::invalid_argument(concat(named.name, ".stride[", last, "] is ", tensor.stride[last],
                                           "; the last axis must be contiguous, with stride 1"));
  }
  TANDEM_RETURN_IF_ERROR(check_extent(named));
  return named.access == Access::kOutput ? check_no_self_overlap(named) : Status::ok();
}

}  // namespace

Status check_required(const NamedTensor& named) {
  if (named.present()) return Status::ok();
  return Status::invalid_argument(concat(named.name, " is absent (its ndim is 0); it is required"));
}

Status check_layout(const NamedTensor& named, std::initializer_list<Axis> axes, LastAxis last_axis) {
  if (!named.present()) return check_absent(named);
  const int ndim = named.tensor->ndim;
  if (ndim != static_cast<int>(axes.size())) {
    return Status::invalid_argument(
        concat(named.name, ".ndim is ", ndim, "; it must be ", axes.size(), ": ", axis_list(axes)));
  }
  TANDEM_RETURN_IF_ERROR(check_shape(named, axes));
  return check_strides(named, last_axis);
}

Status check_dtype(const NamedTensor& named, std::initializer_list<DType> allowed, const NamedTensor& anchor) {
  if (!named.present()) return Status::ok();
  const DType dtype = dtype_of(named);
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return Status::ok();
  std::string text = concat(named.name, ".dtype is ", dtype_text(named.tensor->dtype));
  if (anchor.tensor != named.tensor)
    text += concat(" but ", anchor.name, ".dtype is ", dtype_text(anchor.tensor->dtype));
  text += allowed.size() == 1 ? "; allowed is " : "; allowed are ";
  size_t i = 0;
  for (const DType choice : allowed) {
    if (i > 0) text += i + 1 == allowed.size() ? " and " : ", ";
    text += dtype_name(choice);
    ++i;
  }
  return Status::invalid_argument(text);
}

Status check_scale_layout(const NamedTensor& named, const Axis& batch, const Axis& heads, const Axis& rows,
                          bool packed) {
  const tandem_tensor& tensor = *named.tensor;
  Axis blocks{"number of blocks of 128 rows", ceil_div(rows.size, kScaleBlockRows), rows.source};
  if (packed) blocks.size = Axis::kAny;
  switch (tensor.ndim) {
    case 1: return check_layout(named, {{"1", 1, "one scale for all"}}, LastAxis::kAnyStride);
    case 2: return check_layout(named, {batch, heads}, LastAxis::kAnyStride);
    default: break;
  }
  TANDEM_RETURN_IF_ERROR(check_layout(named, {batch, heads, blocks}, LastAxis::kAnyStride));
  if (named.present() && tensor.shape[2] == 0 && rows.size > 0) {
    return Status::invalid_argument(concat(named.name, ".shape[2] is 0 but ", rows.source, " is ", rows.size,
                                           "; there must be a scale for each block of 128 rows"));
  }
  return Status::ok();
}

DType dtype_of(const NamedTensor& named) {
  return named.present() ? static_cast<DType>(named.tensor->dtype) : DType::kNone;
}

bool has_elements(const tandem_tensor& tensor) {
  return tensor.ndim > 0 && std::find(tensor.shape, tensor.shape + tensor.ndim, 0) == tensor.shape + tensor.ndim;
}

int64_t axis_stride(const tandem_tensor& tensor, int axis) {
  return tensor.shape[axis] > 1 && has_elements(tensor) ? tensor.stride[axis] : 0;
}

Tensor make_tensor(const NamedTensor& named, bool packed, int first) {
  if (!named.present()) return {};
  const tandem_tensor& tensor = *named.tensor;
  const int row = first + (packed ? 0 : 1);
  return {tensor.data, dtype_of(named), packed ? 0 : axis_stride(tensor, first), axis_stride(tensor, row),
          axis_stride(tensor, row + 1)};
}

RowTensor make_row_tensor(const NamedTensor& named, bool packed, int first) {
  if (!named.present()) return {};
  const tandem_tensor& tensor = *named.tensor;
  const int head = first + (packed ? 0 : 1);
  return {tensor.data, dtype_of(named), packed ? 0 : axis_stride(tensor, first), axis_stride(tensor, head),
          axis_stride(tensor, head + 1)};
}

Vector make_vector(const NamedTensor& named) {
  if (!named.present()) return {};
  return {named.tensor->data, dtype_of(named), axis_stride(*named.tensor, 0)};
}

Scales make_scales(const NamedTensor& named) {
  Scales scales;
  if (!named.present()) return scales;
  const tandem_tensor& tensor = *named.tensor;
  scales.data = tensor.data;
  scales.dtype = dtype_of(named);
  if (tensor.ndim >= 2) {
    scales.batch_stride = axis_stride(tensor, 0);
    scales.head_stride = axis_stride(tensor, 1);
  }
  if (tensor.ndim == 3) {
    scales.block_stride = axis_stride(tensor, 2);
    scales.blocks = tensor.shape[2];
  }
  return scales;
}

Tensor make_transposed(const NamedTensor& named, bool packed) {
  const tandem_tensor& tensor = *named.tensor;
  const int head = packed ? 0 : 1;
  return {tensor.data, dtype_of(named), packed ? 0 : axis_stride(tensor, 0), axis_stride(tensor, head + 1),
          axis_stride(tensor, head)};
}

}  // namespace tandem
