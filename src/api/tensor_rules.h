#pragma once

#include <initializer_list>

#include "api/arguments.h"
#include "core/problem.h"
#include "core/status.h"

// What a tensor of tandem.h must be, and its translation into the forms of core/problem.h. Nothing here reads through
// a data pointer. Names in messages are the fields of the C structs.
namespace tandem {

constexpr int64_t kMaxAxisSize = (int64_t{1} << 31) - 1;  // [11]

// One axis of an expected shape.
struct Axis {
  static constexpr int64_t kAny = -1;

  const char* meaning;      // "seqlen_k"
  int64_t size = kAny;      // kAny: this tensor decides it
  const char* source = "";  // where the size comes from: "k.shape[1]"
  bool broadcasts = false;  // 1 will do too
};

enum class LastAxis { kAnyStride, kContiguous };

Status check_required(const NamedTensor& named);

// Rank, sizes and strides, for a present tensor. For an absent one: that it is all zero.
Status check_layout(const NamedTensor& named, std::initializer_list<Axis> axes, LastAxis last_axis);

// That the dtype is one of `allowed`; `anchor` is the tensor that decided what is allowed (itself: nothing did).
Status check_dtype(const NamedTensor& named, std::initializer_list<DType> allowed, const NamedTensor& anchor);

// Scales of fp8: (1), (batch, heads) or (batch, heads, blocks of 128 rows). Packed: any number of blocks but 0, that of
// the longest sequence, which the host does not know.
Status check_scale_layout(const NamedTensor& named, const Axis& batch, const Axis& heads, const Axis& rows,
                          bool packed);

DType dtype_of(const NamedTensor& named);

// The stride to compute with: 0 on axes of size 1, where the caller's is free, and throughout a tensor without
// elements.
int64_t axis_stride(const tandem_tensor& tensor, int axis);
bool has_elements(const tandem_tensor& tensor);

// Translation; of an absent tensor: the absent form. `first` is the axis that (batch, ...) starts at: 1 skips the parts
// of a merge.
Tensor make_tensor(const NamedTensor& named, bool packed, int first = 0);
RowTensor make_row_tensor(const NamedTensor& named, bool packed, int first = 0);
Vector make_vector(const NamedTensor& named);
Scales make_scales(const NamedTensor& named);
// Of ((batch,) heads, columns, slots).
Tensor make_transposed(const NamedTensor& named, bool packed);

}  // namespace tandem
