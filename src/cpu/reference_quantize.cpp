#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/fp8.h"
#include "core/sequence.h"
#include "cpu/reference.h"

namespace tandem::reference {
namespace {

int64_t table_position(const QuantizeProblem& problem, int64_t b, int64_t row) {
  const Vector& offset = problem.rotary_offset;
  const int64_t first =
      offset.present() ? static_cast<int64_t>(load_element(offset.data, offset.dtype, b * offset.stride)) : 0;
  return std::clamp<int64_t>(first + row, 0, problem.rotary_positions - 1);
}

double table_value(const RotaryTable& table, int64_t position, int64_t pair) {
  return load_element(table.data, table.dtype, position * table.position_stride + pair);
}

void embed(const QuantizeProblem& problem, int64_t b, int64_t row, double* x) {
  const int64_t pairs = problem.rotary_pairs;
  for (int64_t n = 0; n < pairs; ++n) {
    const int64_t position = table_position(problem, b, row);
    const double cos = table_value(problem.rotary_cos, position, n);
    const double sin = table_value(problem.rotary_sin, position, n);
    double& first = x[problem.rotary_interleaved ? 2 * n : n];
    double& second = x[problem.rotary_interleaved ? 2 * n + 1 : pairs + n];
    const double turned = first * cos - second * sin;
    second = first * sin + second * cos;
    first = turned;
  }
}

// Entry (i, j) of H: a Sylvester matrix, or Paley's of 12 with a Sylvester matrix in place of each of its entries.
double hadamard(int64_t headdim, int64_t i, int64_t j) {
  const int64_t size = sylvester_size(headdim);
  int sign = size == headdim ? 1 : paley12(static_cast<int>(i / size), static_cast<int>(j / size));
  for (int64_t common = (i % size) & (j % size); common != 0; common &= common - 1) sign = -sign;
  return sign;
}

// H D
Matrix rotation(const QuantizeProblem& problem) {
  Matrix matrix(problem.headdim, problem.headdim);
  for (int64_t i = 0; i < problem.headdim; ++i) {
    for (int64_t j = 0; j < problem.headdim; ++j) {
      const double sign = rotation_is_negative(problem.seed, static_cast<int>(j)) ? -1 : 1;
      matrix.row(i)[j] = hadamard(problem.headdim, i, j) * sign;
    }
  }
  return matrix;
}

// x = H D x / sqrt(headdim)
void rotate(const Matrix& matrix, int64_t headdim, double* x) {
  const std::vector<double> original(x, x + headdim);
  for (int64_t i = 0; i < headdim; ++i) {
    x[i] = dot(matrix.row(i), original.data(), headdim) / std::sqrt(static_cast<double>(headdim));
  }
}

// What is to be rounded: the rows of one head of one sequence.
Matrix prepared_rows(const QuantizeProblem& problem, const RowSpan& span, int64_t b, int64_t h) {
  Matrix x = load_rows(problem.x, b, h, span.begin, span.length, problem.headdim);
  const Matrix matrix = problem.rotate ? rotation(problem) : Matrix(0, 0);
  for (int64_t i = 0; i < span.length; ++i) {
    embed(problem, b, i, x.row(i));
    if (problem.rotate) rotate(matrix, problem.headdim, x.row(i));
  }
  return x;
}

// The scale of a row's group.
float& scale_of(const QuantizeProblem& problem, int64_t b, int64_t h, int64_t row) {
  const Scales& scale = problem.scale;
  const int64_t block = std::min(row / kScaleBlockRows, scale.blocks - 1);
  return static_cast<float*>(scale.data)[b * scale.batch_stride + h * scale.head_stride + block * scale.block_stride];
}

// For each scale: set(b, h, first row of the block).
template <typename Visit>
void for_each_scale(const QuantizeProblem& problem, Visit visit) {
  const int64_t batch = problem.scale_per_head ? problem.batch : 1;
  const int64_t nheads = problem.scale_per_head ? problem.nheads : 1;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < nheads; ++h) {
      for (int64_t block = 0; block < problem.scale.blocks; ++block) visit(b, h, block * kScaleBlockRows);
    }
  }
}

void compute_scales(const QuantizeProblem& problem, const std::vector<RowSpan>& spans) {
  for_each_scale(problem, [&](int64_t b, int64_t h, int64_t row) { scale_of(problem, b, h, row) = 0; });
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.nheads; ++h) {
      const RowSpan& span = spans[static_cast<size_t>(b)];
      const Matrix x = prepared_rows(problem, span, b, h);
      for (int64_t i = 0; i < span.length; ++i) {
        float& largest = scale_of(problem, b, h, i);
        for (int64_t c = 0; c < problem.headdim; ++c) {
          const float magnitude = static_cast<float>(std::fabs(x.row(i)[c]));
          if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
        }
      }
    }
  }
  for_each_scale(problem, [&](int64_t b, int64_t h, int64_t row) {
    float& scale = scale_of(problem, b, h, row);
    scale = std::max(scale / kE4m3Max, 0x1p-126f);
  });
}

// Elements that no row has become 0: all of them, before the rows are written.
void clear_out(const QuantizeProblem& problem) {
  const int64_t batch = problem.packed ? 1 : problem.batch;
  const int64_t slots = problem.packed ? packed_slot_begin(problem.total, problem.batch) : dense_slots(problem.total);
  const int64_t lines = problem.transposed ? problem.headdim : problem.total;
  const int64_t length = problem.transposed ? slots : problem.headdim;
  const Matrix zeros(1, length);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < problem.nheads; ++h) {
      for (int64_t line = 0; line < lines; ++line) store_rows(problem.out, b, h, line, 1, length, zeros);
    }
  }
}

void store_row(const QuantizeProblem& problem, const RowSpan& span, int64_t b, int64_t h, int64_t i, const double* x) {
  const Tensor& out = problem.out;
  const double scale = static_cast<double>(scale_of(problem, b, h, i));
  const int64_t first_slot = problem.packed ? packed_slot_begin(span.begin, b) : 0;
  for (int64_t c = 0; c < problem.headdim; ++c) {
    const int64_t index =
        problem.transposed ? c * out.row_stride + first_slot + key_slot(i) : (span.begin + i) * out.row_stride + c;
    store_element(out.data, out.dtype, b * out.batch_stride + h * out.head_stride + index, x[c] / scale);
  }
}

}  // namespace

Status run_quantize(const QuantizeProblem& problem) {
  std::vector<RowSpan> spans(static_cast<size_t>(problem.batch));
  read_row_spans(problem, spans.data());
  compute_scales(problem, spans);
  clear_out(problem);
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.nheads; ++h) {
      const RowSpan& span = spans[static_cast<size_t>(b)];
      const Matrix x = prepared_rows(problem, span, b, h);
      for (int64_t i = 0; i < span.length; ++i) store_row(problem, span, b, h, i, x.row(i));
    }
  }
  return Status::ok();
}

}  // namespace tandem::reference
