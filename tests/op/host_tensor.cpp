#include "host_tensor.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "float_types.h"

namespace tandem::optest {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int64_t kHugeStride = int64_t{1} << 40;

bool contains(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

}  // namespace

HostTensor::HostTensor(Shape shape, int32_t dtype, const Layout& layout) : shape_(std::move(shape)), dtype_(dtype) {
  const int ndim = static_cast<int>(shape_.size());
  std::vector<int> order = layout.order;
  if (order.empty()) {
    order.resize(shape_.size());
    std::iota(order.begin(), order.end(), 0);
  }
  stride_.assign(shape_.size(), 0);
  int64_t elements = 1;
  int64_t slice_elements = 0;
  for (int n = ndim - 1; n >= 0; --n) {
    const int axis = order[static_cast<size_t>(n)];
    const int64_t size = shape_[static_cast<size_t>(axis)];
    if (!contains(layout.broadcast, axis)) {
      stride_[static_cast<size_t>(axis)] = elements;
      elements *= size;
    }
    if (n == ndim - 1) elements += layout.padding;
    if (n == ndim - 2) {
      slice_elements = elements;
      elements *= layout.slices;
    }
    if (size == 1 && axis != ndim - 1 && layout.huge_strides_on_ones) stride_[static_cast<size_t>(axis)] = kHugeStride;
  }
  const int64_t bytes = element_bytes(dtype);
  first_element_ = kGuardBytes / bytes + layout.offset + layout.slice * slice_elements;
  storage_.assign(static_cast<size_t>((elements + layout.offset) * bytes + 2 * kGuardBytes), 0xff);
}

int64_t HostTensor::count() const {
  return std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

tandem_tensor HostTensor::view_in(uint8_t* storage) const {
  tandem_tensor tensor = {};
  if (!present()) return tensor;
  tensor.data = storage + first_element_ * element_bytes(dtype_);
  tensor.dtype = dtype_;
  tensor.ndim = static_cast<int32_t>(shape_.size());
  std::copy(shape_.begin(), shape_.end(), tensor.shape);
  std::copy(stride_.begin(), stride_.end(), tensor.stride);
  return tensor;
}

int64_t HostTensor::element_of(int64_t flat) const {
  int64_t element = first_element_;
  for (size_t axis = shape_.size(); axis-- > 0;) {
    const int64_t index = flat % shape_[axis];
    flat /= shape_[axis];
    element += index * stride_[axis];
  }
  return element;
}

std::vector<int64_t> HostTensor::elements() const {
  std::vector<int64_t> result = {first_element_};
  for (size_t axis = 0; axis < shape_.size(); ++axis) {
    std::vector<int64_t> longer;
    longer.reserve(result.size() * static_cast<size_t>(shape_[axis]));
    for (int64_t element : result) {
      for (int64_t index = 0; index < shape_[axis]; ++index) longer.push_back(element + index * stride_[axis]);
    }
    result = std::move(longer);
  }
  return result;
}

double HostTensor::get(int64_t flat) const {
  return load(storage_.data(), dtype_, element_of(flat));
}
void HostTensor::set(int64_t flat, double value) {
  store(storage_.data(), dtype_, element_of(flat), value);
}

std::vector<double> HostTensor::values() const {
  std::vector<double> result;
  if (!present()) return result;
  for (int64_t element : elements()) result.push_back(load(storage_.data(), dtype_, element));
  return result;
}

void HostTensor::snapshot() {
  before_ = storage_;
}

std::string HostTensor::changes_anywhere() const {
  const auto [now, before] = std::mismatch(storage_.begin(), storage_.end(), before_.begin(), before_.end());
  if (now == storage_.end()) return "";
  return "byte " + std::to_string(now - storage_.begin() - first_element_ * element_bytes(dtype_)) +
         " from the base of an input was written";
}

std::string HostTensor::changes_outside_view() const {
  const int64_t bytes = element_bytes(dtype_);
  std::vector<uint8_t> expected = before_;
  for (int64_t element : elements()) {
    const std::ptrdiff_t begin = element * bytes;
    std::copy_n(storage_.begin() + begin, bytes, expected.begin() + begin);
  }
  const auto [now, then] = std::mismatch(storage_.begin(), storage_.end(), expected.begin(), expected.end());
  if (now == storage_.end()) return "";
  return "byte " + std::to_string(now - storage_.begin() - first_element_ * bytes) +
         " from the base of an output lies outside its elements, but was written";
}

}  // namespace tandem::optest
