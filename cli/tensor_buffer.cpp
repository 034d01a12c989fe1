#include "tensor_buffer.h"

#include <new>
#include <utility>

#include "exit_codes.h"
#include "float_formats.h"

namespace tandem::cli {
namespace {

constexpr int64_t kAlignment = 64;

}  // namespace

std::optional<int64_t> checked_element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

std::optional<int64_t> checked_byte_count(int32_t dtype, const std::vector<int64_t>& shape) {
  std::optional<int64_t> count = checked_element_count(shape);
  if (!count || __builtin_mul_overflow(*count, dtype_bytes(dtype), &*count)) return std::nullopt;
  return count;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "(" + text + ")";
}

TensorBuffer::TensorBuffer(int32_t dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
  const std::optional<int64_t> bytes = checked_byte_count(dtype, shape_);
  if (!bytes) throw CliError(kUsageError, "A tensor of shape " + shape_text(shape_) + " does not fit any memory.");
  size_ = *checked_element_count(shape_);
  // One unit more than asked: an empty tensor still has an address, and aligned_alloc wants whole units.
  const size_t rounded = (static_cast<size_t>(*bytes) / kAlignment + 1) * kAlignment;
  data_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
}

int64_t TensorBuffer::bytes() const {
  return size_ * dtype_bytes(dtype_);
}

double TensorBuffer::at(int64_t index) const {
  return load_element(data_.get(), dtype_, index);
}

void TensorBuffer::set(int64_t index, double value) {
  store_element(data_.get(), dtype_, index, value);
}

void TensorBuffer::fill(double value) {
  for (int64_t i = 0; i < size_; ++i) set(i, value);
}

std::vector<double> TensorBuffer::to_doubles() const {
  std::vector<double> values(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) values[static_cast<size_t>(i)] = at(i);
  return values;
}

TensorBuffer TensorBuffer::converted(int32_t dtype) const {
  if (!present()) return {};
  TensorBuffer result(dtype, shape_);
  for (int64_t i = 0; i < size_; ++i) result.set(i, at(i));
  return result;
}

tandem_tensor TensorBuffer::view() const {
  tandem_tensor tensor = {};
  if (!present()) return tensor;
  tensor.data = data_.get();
  tensor.dtype = dtype_;
  tensor.ndim = static_cast<int32_t>(shape_.size());
  int64_t stride = 1;
  for (size_t axis = shape_.size(); axis-- > 0;) {
    if (axis < TANDEM_MAX_NDIM) {
      tensor.shape[axis] = shape_[axis];
      tensor.stride[axis] = stride;
    }
    stride *= shape_[axis];
  }
  return tensor;
}

}  // namespace tandem::cli
