// The C interface in C++17: views from pointers and shapes, exceptions instead of codes, structs that are ready to fill
// in. Header-only over tandem.h, whose field names and rules hold here too. Nothing is allocated but by HostWorkspace.
//
//     tandem::ForwardParams params;
//     params.q = tandem::view(q, {batch, seqlen_q, nheads_q, headdim});     // and k, v, out, lse
//     params.mask.causal = 1;
//     tandem::HostWorkspace workspace;
//     tandem::run(params, workspace);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "tandem/tandem.h"

namespace tandem {

// A call that returned something other than TANDEM_OK; what() is its sentence.
class Error : public std::runtime_error {
 public:
  Error(tandem_status code, const std::string& message) : std::runtime_error(message), code_(code) {}
  tandem_status code() const noexcept { return code_; }

 private:
  tandem_status code_;
};

// Throws an Error with the calling thread's last-error text unless `status` is TANDEM_OK.
inline void throw_if_error(tandem_status status) {
  if (status != TANDEM_OK) throw Error(status, tandem_last_error());
}

// ---------------------------------------------------------------------------------------------------------- tensors

enum class ElementType : int32_t {
  kFp64 = TANDEM_FP64,
  kFp32 = TANDEM_FP32,
  kFp16 = TANDEM_FP16,
  kBf16 = TANDEM_BF16,
  kE4m3 = TANDEM_E4M3,
  kE5m2 = TANDEM_E5M2,
  kInt32 = TANDEM_INT32
};

// The element type of a C++ type. Specialize it for your own 16-bit and 8-bit types, or name the type in view().
template <class T>
struct ElementTypeOf;
template <>
struct ElementTypeOf<double> {
  static constexpr ElementType value = ElementType::kFp64;
};
template <>
struct ElementTypeOf<float> {
  static constexpr ElementType value = ElementType::kFp32;
};
template <>
struct ElementTypeOf<int32_t> {
  static constexpr ElementType value = ElementType::kInt32;
};

// A view of memory that stays yours; strides count elements. Of memory that is const, make inputs only: the library
// never writes to those.
inline tandem_tensor view(const void* data, ElementType type, std::initializer_list<int64_t> shape,
                          std::initializer_list<int64_t> strides) {
  if (shape.size() > TANDEM_MAX_NDIM || shape.size() != strides.size()) {
    throw Error(TANDEM_INVALID_ARGUMENT, "view: shape has " + std::to_string(shape.size()) + " axes and strides have " +
                                             std::to_string(strides.size()) + "; both need the same number, 6 at most");
  }
  tandem_tensor tensor{};
  tensor.data = const_cast<void*>(data);
  tensor.dtype = static_cast<int32_t>(type);
  tensor.ndim = static_cast<int32_t>(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    tensor.shape[i] = shape.begin()[i];
    tensor.stride[i] = strides.begin()[i];
  }
  return tensor;
}

// Of contiguous memory, the last axis innermost.
inline tandem_tensor view(const void* data, ElementType type, std::initializer_list<int64_t> shape) {
  tandem_tensor tensor{};
  if (shape.size() > TANDEM_MAX_NDIM) {
    throw Error(TANDEM_INVALID_ARGUMENT,
                "view: shape has " + std::to_string(shape.size()) + " axes; allowed are 6 at most");
  }
  tensor.data = const_cast<void*>(data);
  tensor.dtype = static_cast<int32_t>(type);
  tensor.ndim = static_cast<int32_t>(shape.size());
  uint64_t stride = 1;  // unsigned: sizes that no memory has are for the check call to refuse
  for (size_t i = shape.size(); i-- > 0;) {
    tensor.shape[i] = shape.begin()[i];
    tensor.stride[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(tensor.shape[i]);
  }
  return tensor;
}

template <class T>
tandem_tensor view(const T* data, std::initializer_list<int64_t> shape) {
  return view(data, ElementTypeOf<T>::value, shape);
}

template <class T>
tandem_tensor view(const T* data, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  return view(data, ElementTypeOf<T>::value, shape, strides);
}

// -------------------------------------------------------------------------------------------------------- parameters

// A parameter struct of tandem.h, all zero but for its struct_size.
template <class CParams>
struct ParamsOf : CParams {
  using Base = CParams;
  ParamsOf() : CParams{} { this->struct_size = sizeof(CParams); }
};

using ForwardParams = ParamsOf<tandem_forward_params>;
using VarlenForwardParams = ParamsOf<tandem_varlen_forward_params>;
using BackwardParams = ParamsOf<tandem_backward_params>;
using VarlenBackwardParams = ParamsOf<tandem_varlen_backward_params>;
using MergeParams = ParamsOf<tandem_merge_params>;
using QuantizeFp8Params = ParamsOf<tandem_quantize_fp8_params>;

struct WorkspaceSize {
  uint64_t bytes = 0;
  uint64_t alignment = 1;
};

namespace detail {

// The three calls of each operation, by the type of its parameters.
template <class CParams>
struct Calls {
  tandem_status (*check)(const CParams*);
  tandem_status (*workspace)(const CParams*, uint64_t*, uint64_t*);
  tandem_status (*run)(const CParams*);
};

inline Calls<tandem_forward_params> calls_of(const tandem_forward_params&) {
  return {tandem_forward_check, tandem_forward_workspace, tandem_forward};
}
inline Calls<tandem_varlen_forward_params> calls_of(const tandem_varlen_forward_params&) {
  return {tandem_varlen_forward_check, tandem_varlen_forward_workspace, tandem_varlen_forward};
}
inline Calls<tandem_backward_params> calls_of(const tandem_backward_params&) {
  return {tandem_backward_check, tandem_backward_workspace, tandem_backward};
}
inline Calls<tandem_varlen_backward_params> calls_of(const tandem_varlen_backward_params&) {
  return {tandem_varlen_backward_check, tandem_varlen_backward_workspace, tandem_varlen_backward};
}
inline Calls<tandem_merge_params> calls_of(const tandem_merge_params&) {
  return {tandem_merge_check, tandem_merge_workspace, tandem_merge};
}
inline Calls<tandem_quantize_fp8_params> calls_of(const tandem_quantize_fp8_params&) {
  return {tandem_quantize_fp8_check, tandem_quantize_fp8_workspace, tandem_quantize_fp8};
}

}  // namespace detail

// ------------------------------------------------------------------------------------------------------------- calls

// Throws an Error if the problem is not valid or cannot run. Tensors may have data == nullptr.
template <class Params>
void check(const Params& params) {
  throw_if_error(detail::calls_of(params).check(&params));
}

// What params.exec.workspace must offer. Tensors may have data == nullptr.
template <class Params>
WorkspaceSize workspace_size(const Params& params) {
  WorkspaceSize size;
  throw_if_error(detail::calls_of(params).workspace(&params, &size.bytes, &size.alignment));
  return size;
}

// Runs with the workspace in params.exec.
template <class Params>
void run(const Params& params) {
  throw_if_error(detail::calls_of(params).run(&params));
}

// Workspace in host memory, for calls on the CPU; it grows and is kept from call to call. One per thread.
class HostWorkspace {
 public:
  HostWorkspace() = default;
  HostWorkspace(HostWorkspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, WorkspaceSize{})) {}
  HostWorkspace& operator=(HostWorkspace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  HostWorkspace(const HostWorkspace&) = delete;
  HostWorkspace& operator=(const HostWorkspace&) = delete;
  ~HostWorkspace() { release(); }

  // Makes room for `size`; throws std::bad_alloc. What the workspace held is lost if it has to grow.
  void reserve(WorkspaceSize size) {
    if (size.bytes <= size_.bytes && size.alignment <= size_.alignment) return;
    size.bytes = std::max(size.bytes, size_.bytes);
    size.alignment = std::max(size.alignment, size_.alignment);
    release();
    data_ = ::operator new(static_cast<size_t>(size.bytes), std::align_val_t(size.alignment));
    size_ = size;
  }

  void release() noexcept {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t(size_.alignment));
    data_ = nullptr;
    size_ = {};
  }

  void* data() const noexcept { return data_; }
  uint64_t bytes() const noexcept { return size_.bytes; }

 private:
  void* data_ = nullptr;
  WorkspaceSize size_;
};

// Runs on the CPU with `workspace`, which grows as far as needed; params.exec.workspace is not used.
template <class Params>
void run(Params params, HostWorkspace& workspace) {
  if (params.exec.device.type != TANDEM_CPU) {
    throw Error(TANDEM_INVALID_ARGUMENT, "exec.device.type is not TANDEM_CPU; a HostWorkspace serves the CPU only");
  }
  workspace.reserve(workspace_size(params));
  params.exec.workspace = workspace.data();
  params.exec.workspace_bytes = workspace.bytes();
  run(static_cast<const Params&>(params));
}

}  // namespace tandem
