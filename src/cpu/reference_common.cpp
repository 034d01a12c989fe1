#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/fp8.h"
#include "cpu/reference.h"

namespace tandem::reference {
namespace {

int64_t element_index(const Tensor& tensor, int64_t batch, int64_t head, int64_t row) {
  return batch * tensor.batch_stride + row * tensor.row_stride + head * tensor.head_stride;
}

int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && a < 0 ? 1 : 0);
}

void multiply_by_scales(const Scales& scales, int64_t batch, int64_t head, int64_t rows, int64_t columns, Matrix& x) {
  if (!scales.present()) return;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t block = std::min(i / kScaleBlockRows, scales.blocks - 1);
    const int64_t index =
        batch * scales.batch_stride + head / scales.heads_per_scale * scales.head_stride + block * scales.block_stride;
    const double scale = load_element(scales.data, scales.dtype, index);
    for (int64_t c = 0; c < columns; ++c) x.row(i)[c] *= scale;
  }
}

Matrix load_transposed_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head) {
  const Tensor& v = problem.v;
  const int64_t first =
      batch * v.batch_stride + head * v.head_stride + (problem.packed ? packed_slot_begin(span.k_begin, batch) : 0);
  Matrix values(span.k_len, problem.headdim_v);
  for (int64_t j = 0; j < span.k_len; ++j) {
    for (int64_t c = 0; c < problem.headdim_v; ++c) {
      values.row(j)[c] = load_element(v.data, v.dtype, first + c * v.row_stride + key_slot(j));
    }
  }
  return values;
}

}  // namespace

Matrix load_rows(const Tensor& tensor, int64_t batch, int64_t head, int64_t begin, int64_t rows, int64_t columns) {
  Matrix values(rows, columns);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t index = element_index(tensor, batch, head, begin + i);
    for (int64_t c = 0; c < columns; ++c) values.row(i)[c] = load_element(tensor.data, tensor.dtype, index + c);
  }
  return values;
}

Matrix load_query_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head) {
  Matrix q = load_rows(problem.q, batch, head, span.q_begin, span.q_len, problem.headdim);
  multiply_by_scales(problem.q_scale, batch, head, span.q_len, problem.headdim, q);
  return q;
}

Matrix load_key_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head) {
  Matrix k = load_rows(problem.k, batch, head, span.k_begin, span.k_len, problem.headdim);
  multiply_by_scales(problem.k_scale, batch, head, span.k_len, problem.headdim, k);
  return k;
}

Matrix load_value_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head) {
  Matrix v = problem.v_transposed ? load_transposed_rows(problem, span, batch, head)
                                  : load_rows(problem.v, batch, head, span.k_begin, span.k_len, problem.headdim_v);
  multiply_by_scales(problem.v_scale, batch, head, span.k_len, problem.headdim_v, v);
  return v;
}

void store_rows(const Tensor& tensor, int64_t batch, int64_t head, int64_t begin, int64_t rows, int64_t columns,
                const Matrix& values) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t index = element_index(tensor, batch, head, begin + i);
    for (int64_t c = 0; c < columns; ++c) store_element(tensor.data, tensor.dtype, index + c, values.row(i)[c]);
  }
}

double load_row_value(const RowTensor& tensor, int64_t batch, int64_t head, int64_t row) {
  const int64_t index = batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
  return load_element(tensor.data, tensor.dtype, index);
}

void store_row_value(const RowTensor& tensor, int64_t batch, int64_t head, int64_t row, double value) {
  const int64_t index = batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
  store_element(tensor.data, tensor.dtype, index, value);
}

void zero_rows(const AttentionProblem& problem, const Tensor& tensor, int64_t rows, int64_t nheads, int64_t columns) {
  const Matrix zeros(1, columns);
  const int64_t buffers = problem.packed ? 1 : problem.batch;
  for (int64_t b = 0; b < buffers; ++b) {
    for (int64_t h = 0; h < nheads; ++h) {
      for (int64_t i = 0; i < rows; ++i) store_rows(tensor, b, h, i, 1, columns, zeros);
    }
  }
}

double dot(const double* a, const double* b, int64_t length) {
  double sum = 0;
  for (int64_t c = 0; c < length; ++c) sum += a[c] * b[c];
  return sum;
}

std::vector<SequenceSpan> sequence_spans(const AttentionProblem& problem) {
  std::vector<SequenceSpan> spans(static_cast<size_t>(problem.batch));
  read_sequence_spans(problem, spans.data());
  return spans;
}

RowMask::RowMask(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head, int64_t row)
    : mask_(problem.mask),
      position_(row + (problem.mask.top_left ? 0 : span.k_len - span.q_len)),
      lo_(0),
      hi_(span.k_len) {
  const int64_t buffer_row = span.q_begin + row;
  if (problem.lo.present()) lo_ = static_cast<int64_t>(load_row_value(problem.lo, batch, head, buffer_row));
  if (problem.hi.present()) hi_ = static_cast<int64_t>(load_row_value(problem.hi, batch, head, buffer_row));
}

bool RowMask::visible(int64_t key) const {
  return lo_ <= key && key < hi_ && (!mask_.causal || key <= position_) &&
         (mask_.window_left < 0 || position_ - key <= mask_.window_left) &&
         (mask_.window_right < 0 || key - position_ <= mask_.window_right) &&
         (mask_.attention_chunk == 0 ||
          floor_div(key, mask_.attention_chunk) == floor_div(position_, mask_.attention_chunk));
}

double score(const AttentionProblem& problem, const double* q, const double* k) {
  const double scaled = problem.softmax_scale * dot(q, k, problem.headdim);
  return problem.softcap > 0 ? problem.softcap * std::tanh(scaled / problem.softcap) : scaled;
}

}  // namespace tandem::reference
