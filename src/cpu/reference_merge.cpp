#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "cpu/reference.h"

namespace tandem::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor part_of(const MergeProblem& problem, int64_t part) {
  Tensor tensor = problem.out_partial;
  const int64_t bytes = part * problem.out_part_stride * dtype_bytes(tensor.dtype);
  tensor.data = static_cast<char*>(tensor.data) + bytes;
  return tensor;
}

double partial_lse(const MergeProblem& problem, int64_t part, int64_t b, int64_t h, int64_t i) {
  const RowTensor& lse = problem.lse_partial;
  const int64_t index = b * lse.batch_stride + h * lse.head_stride + i * lse.row_stride;
  return load_element(lse.data, lse.dtype, part * problem.lse_part_stride + index);
}

void store_merged(const MergeProblem& problem, int64_t b, int64_t h, int64_t i, const Matrix& out, double lse) {
  store_rows(problem.out, b, h, i, 1, problem.headdim_v, out);
  if (problem.lse.present()) store_row_value(problem.lse, b, h, i, lse);
}

void merge_row(const MergeProblem& problem, int64_t b, int64_t h, int64_t i) {
  std::vector<int64_t> parts;  // those that are not empty: the others' O is never read
  for (int64_t n = 0; n < problem.parts; ++n) {
    if (partial_lse(problem, n, b, h, i) != -kInfinity) parts.push_back(n);
  }
  if (parts.size() == 1 && !problem.sink.present()) {  // no arithmetic: bit for bit
    const Matrix only = load_rows(part_of(problem, parts[0]), b, h, i, 1, problem.headdim_v);
    store_merged(problem, b, h, i, only, partial_lse(problem, parts[0], b, h, i));
    return;
  }
  const double sink = problem.sink.present()
                          ? load_element(problem.sink.data, problem.sink.dtype, h * problem.sink.stride)
                          : -kInfinity;
  Matrix out(1, problem.headdim_v);
  if (parts.empty()) {
    store_merged(problem, b, h, i, out, sink);
    return;
  }
  double largest = sink;
  for (int64_t n : parts) largest = std::fmax(largest, partial_lse(problem, n, b, h, i));
  double sum = std::exp(sink - largest);
  for (int64_t n : parts) sum += std::exp(partial_lse(problem, n, b, h, i) - largest);
  const double lse = largest + std::log(sum);
  for (int64_t n : parts) {
    const double weight = std::exp(partial_lse(problem, n, b, h, i) - lse);
    const Matrix partial = load_rows(part_of(problem, n), b, h, i, 1, problem.headdim_v);
    for (int64_t c = 0; c < problem.headdim_v; ++c) out.row(0)[c] += weight * partial.row(0)[c];
  }
  store_merged(problem, b, h, i, out, lse);
}

}  // namespace

Status run_merge(const MergeProblem& problem) {
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.nheads; ++h) {
      for (int64_t i = 0; i < problem.rows; ++i) merge_row(problem, b, h, i);
    }
  }
  return Status::ok();
}

}  // namespace tandem::reference
