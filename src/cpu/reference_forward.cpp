#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "cpu/reference.h"

namespace tandem::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void clear_outputs(const AttentionProblem& problem) {
  zero_rows(problem, problem.out, problem.total_q, problem.nheads_q, problem.headdim_v);
  if (!problem.lse.present()) return;
  const int64_t buffers = problem.packed ? 1 : problem.batch;
  for (int64_t b = 0; b < buffers; ++b) {
    for (int64_t h = 0; h < problem.nheads_q; ++h) {
      for (int64_t i = 0; i < problem.total_q; ++i) store_row_value(problem.lse, b, h, i, -kInfinity);
    }
  }
}

// Fills the row of O (headdim_v values, zero on entry) and returns the row's LSE.
double attend(const AttentionProblem& problem, const RowMask& mask, double sink, const double* q, const Matrix& k,
              const Matrix& v, int64_t k_len, double* out) {
  std::vector<int64_t> keys;
  std::vector<double> scores;
  double row_max = sink;
  for (int64_t j = 0; j < k_len; ++j) {
    if (!mask.visible(j)) continue;
    keys.push_back(j);
    scores.push_back(score(problem, q, k.row(j)));
    row_max = std::fmax(row_max, scores.back());
  }
  const double base = row_max == -kInfinity ? 0 : row_max;  // -inf - -inf would be NaN
  double key_sum = 0;
  for (double s : scores) key_sum += std::exp(s - base);
  if (key_sum == 0) return sink;  // no key counts: -inf without a sink [5]
  const double row_sum = key_sum + std::exp(sink - base);
  for (size_t n = 0; n < keys.size(); ++n) {
    const double p = std::exp(scores[n] - base) / row_sum;
    for (int64_t c = 0; c < problem.headdim_v; ++c) out[c] += p * v.row(keys[n])[c];
  }
  return base + std::log(row_sum);
}

void run_head(const AttentionProblem& problem, const SequenceSpan& span, int64_t b, int64_t h, const Matrix& k,
              const Matrix& v) {
  const double sink = problem.sink.present()
                          ? load_element(problem.sink.data, problem.sink.dtype, h * problem.sink.stride)
                          : -kInfinity;
  const Matrix q = load_query_rows(problem, span, b, h);
  Matrix out(span.q_len, problem.headdim_v);
  for (int64_t i = 0; i < span.q_len; ++i) {
    const RowMask mask(problem, span, b, h, i);
    const double lse = attend(problem, mask, sink, q.row(i), k, v, span.k_len, out.row(i));
    if (problem.lse.present()) store_row_value(problem.lse, b, h, span.q_begin + i, lse);
  }
  store_rows(problem.out, b, h, span.q_begin, span.q_len, problem.headdim_v, out);
}

}  // namespace

Status run_forward(const AttentionProblem& problem) {
  clear_outputs(problem);
  const std::vector<SequenceSpan> spans = sequence_spans(problem);
  for (int64_t b = 0; b < problem.batch; ++b) {
    const SequenceSpan& span = spans[static_cast<size_t>(b)];
    for (int64_t h_k = 0; h_k < problem.nheads_k; ++h_k) {
      const Matrix k = load_key_rows(problem, span, b, h_k);
      const Matrix v = load_value_rows(problem, span, b, h_k);
      const int64_t group = problem.qheads_per_khead();
      for (int64_t h = h_k * group; h < (h_k + 1) * group; ++h) run_head(problem, span, b, h, k, v);
    }
  }
  return Status::ok();
}

}  // namespace tandem::reference
