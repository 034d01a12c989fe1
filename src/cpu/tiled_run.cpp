#include "cpu/tiled_run.h"

#include <cstring>

namespace tandem {
namespace {

double load_float(const void* data, DType dtype, int64_t element) {
  return dtype == DType::kFp64 ? static_cast<const double*>(data)[element]
                               : static_cast<double>(static_cast<const float*>(data)[element]);
}

void store_float(void* data, DType dtype, int64_t element, double value) {
  if (dtype == DType::kFp64) {
    static_cast<double*>(data)[element] = value;
  } else {
    static_cast<float*>(data)[element] = static_cast<float>(value);
  }
}

int64_t element_of(const RowTensor& tensor, int64_t sequence, int64_t head, int64_t row) {
  return sequence * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
}

}  // namespace

void zero_rows(const Tensor& tensor, int64_t sequence, int64_t begin, int64_t end, int64_t nheads, int64_t columns) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < nheads; ++head) {
      const int64_t element = sequence * tensor.batch_stride + row * tensor.row_stride + head * tensor.head_stride;
      std::memset(static_cast<char*>(tensor.data) + element * bytes, 0, static_cast<size_t>(columns * bytes));
    }
  }
}

double load_value(const Vector& vector, int64_t index) {
  return load_float(vector.data, vector.dtype, index * vector.stride);
}
double load_value(const RowTensor& tensor, int64_t sequence, int64_t head, int64_t row) {
  return load_float(tensor.data, tensor.dtype, element_of(tensor, sequence, head, row));
}
void store_value(const Vector& vector, int64_t index, double value) {
  store_float(vector.data, vector.dtype, index * vector.stride, value);
}
void store_value(const RowTensor& tensor, int64_t sequence, int64_t head, int64_t row, double value) {
  store_float(tensor.data, tensor.dtype, element_of(tensor, sequence, head, row), value);
}

}  // namespace tandem
