#include "cpu/tiled_merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/threads.h"
#include "cpu/tiled_run.h"

namespace tandem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
  int64_t batch;
  int64_t head;
  int64_t row;
};

int64_t element_of(const Tensor& tensor, const Row& at) {
  return at.batch * tensor.batch_stride + at.row * tensor.row_stride + at.head * tensor.head_stride;
}

double part_lse(const MergeProblem& problem, int64_t part, const Row& at) {
  const RowTensor& lse = problem.lse_partial;
  const int64_t element = part * problem.lse_part_stride + at.batch * lse.batch_stride + at.head * lse.head_stride +
                          at.row * lse.row_stride;
  return load_element(lse.data, lse.dtype, element);
}

struct Parts {
  int64_t count = 0;        // of parts that are not empty
  int64_t last = 0;         // the last of them
  double lse = -kInfinity;  // of the result, sink included
};

// log(sum of exp) around the maximum. NaN in any part gives NaN.
Parts combine_lse(const MergeProblem& problem, const Row& at) {
  Parts parts;
  const double sink = problem.sink.present() ? load_value(problem.sink, at.head) : -kInfinity;
  double max = sink;
  for (int64_t n = 0; n < problem.parts; ++n) {
    const double lse = part_lse(problem, n, at);
    if (lse == -kInfinity) continue;
    ++parts.count;
    parts.last = n;
    max = std::max(max, lse);
  }
  if (max == -kInfinity && parts.count == 0) return parts;
  double sum = std::exp(sink - max);
  for (int64_t n = 0; n < problem.parts; ++n) {
    const double lse = part_lse(problem, n, at);
    if (lse != -kInfinity) sum += std::exp(lse - max);
  }
  parts.lse = max + std::log(sum);
  return parts;
}

void merge_columns(const MergeProblem& problem, const Row& at, const Parts& parts) {
  constexpr int64_t kColumns = 256;
  for (int64_t begin = 0; begin < problem.headdim_v; begin += kColumns) {
    const int64_t columns = std::min(kColumns, problem.headdim_v - begin);
    double sum[kColumns] = {};
    for (int64_t n = 0; n < problem.parts && parts.count > 0; ++n) {
      const double lse = part_lse(problem, n, at);
      if (lse == -kInfinity) continue;
      const double weight = std::exp(lse - parts.lse);
      const int64_t element = n * problem.out_part_stride + element_of(problem.out_partial, at) + begin;
      for (int64_t c = 0; c < columns; ++c) {
        sum[c] += weight * load_element(problem.out_partial.data, problem.out_partial.dtype, element + c);
      }
    }
    const int64_t element = element_of(problem.out, at) + begin;
    for (int64_t c = 0; c < columns; ++c) store_element(problem.out.data, problem.out.dtype, element + c, sum[c]);
  }
}

void copy_row(const MergeProblem& problem, const Row& at, int64_t part) {
  const int64_t bytes = dtype_bytes(problem.out.dtype);
  const auto* src = static_cast<const char*>(problem.out_partial.data);
  auto* dst = static_cast<char*>(problem.out.data);
  std::memcpy(dst + element_of(problem.out, at) * bytes,
              src + (part * problem.out_part_stride + element_of(problem.out_partial, at)) * bytes,
              static_cast<size_t>(problem.headdim_v * bytes));
}

void merge_row(const MergeProblem& problem, const Row& at) {
  Parts parts = combine_lse(problem, at);
  if (parts.count == 1 && !problem.sink.present()) {
    parts.lse = part_lse(problem, parts.last, at);
    if (problem.out.dtype == problem.out_partial.dtype) {
      copy_row(problem, at, parts.last);
    } else {
      merge_columns(problem, at, parts);
    }
  } else {
    merge_columns(problem, at, parts);
  }
  if (problem.lse.present()) store_value(problem.lse, at.batch, at.head, at.row, parts.lse);
}

}  // namespace

void run_tiled_merge(const MergeProblem& problem) {
  parallel_for(resolve_num_threads(problem.exec.num_threads), problem.batch * problem.rows, [&](int64_t index, int) {
    for (int64_t head = 0; head < problem.nheads; ++head) {
      merge_row(problem, {index / problem.rows, head, index % problem.rows});
    }
  });
}

}  // namespace tandem
