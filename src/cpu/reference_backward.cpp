#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "cpu/reference.h"

namespace tandem::reference {
namespace {

// One key head of one sequence, shared by the query heads of its group.
struct KeyHead {
  Matrix k;
  Matrix v;
  Matrix dk;
  Matrix dv;
};

void clear_gradients(const AttentionProblem& problem) {
  zero_rows(problem, problem.dq, problem.total_q, problem.nheads_q, problem.headdim);
  zero_rows(problem, problem.dk, problem.total_k, problem.nheads_k, problem.headdim);
  zero_rows(problem, problem.dv, problem.total_k, problem.nheads_k, problem.headdim_v);
}

// dO . O - dLSE; a gradient of an LSE that is not finite does not count [6].
double row_delta(const AttentionProblem& problem, const double* dout, const double* out, double lse, int64_t b,
                 int64_t h, int64_t buffer_row) {
  double delta = dot(dout, out, problem.headdim_v);
  if (problem.dlse.present() && std::isfinite(lse)) delta -= load_row_value(problem.dlse, b, h, buffer_row);
  return delta;
}

void backward_row(const AttentionProblem& problem, const RowMask& mask, double lse, double delta, const double* q,
                  const double* dout, int64_t k_len, KeyHead& head, double* dq) {
  for (int64_t j = 0; j < k_len; ++j) {
    if (!mask.visible(j)) continue;
    const double s = score(problem, q, head.k.row(j));
    const double p = std::exp(std::min(s - lse, 0.0));  // more than 1 can only come from the rounding of a huge lse
    double ds = p * (dot(dout, head.v.row(j), problem.headdim_v) - delta);
    if (problem.softcap > 0) ds *= 1 - (s / problem.softcap) * (s / problem.softcap);
    for (int64_t c = 0; c < problem.headdim; ++c) {
      dq[c] += problem.softmax_scale * ds * head.k.row(j)[c];
      head.dk.row(j)[c] += problem.softmax_scale * ds * q[c];
    }
    for (int64_t c = 0; c < problem.headdim_v; ++c) head.dv.row(j)[c] += p * dout[c];
  }
}

// Adds to head.dk and head.dv, writes dQ, and returns this head's share of dsink.
double run_head(const AttentionProblem& problem, const SequenceSpan& span, int64_t b, int64_t h, KeyHead& head) {
  const Matrix q = load_rows(problem.q, b, h, span.q_begin, span.q_len, problem.headdim);
  const Matrix out = load_rows(problem.out, b, h, span.q_begin, span.q_len, problem.headdim_v);
  const Matrix dout = load_rows(problem.dout, b, h, span.q_begin, span.q_len, problem.headdim_v);
  Matrix dq(span.q_len, problem.headdim);
  double dsink = 0;
  for (int64_t i = 0; i < span.q_len; ++i) {
    const double lse = load_row_value(problem.lse, b, h, span.q_begin + i);
    if (lse == -std::numeric_limits<double>::infinity()) continue;  // an empty row [5]
    const double delta = row_delta(problem, dout.row(i), out.row(i), lse, b, h, span.q_begin + i);
    const RowMask mask(problem, span, b, h, i);
    backward_row(problem, mask, lse, delta, q.row(i), dout.row(i), span.k_len, head, dq.row(i));
    if (problem.sink.present()) {
      const double sink = load_element(problem.sink.data, problem.sink.dtype, h * problem.sink.stride);
      dsink -= std::exp(sink - lse) * delta;
    }
  }
  store_rows(problem.dq, b, h, span.q_begin, span.q_len, problem.headdim, dq);
  return dsink;
}

}  // namespace

Status run_backward(const AttentionProblem& problem) {
  clear_gradients(problem);
  const std::vector<SequenceSpan> spans = sequence_spans(problem);
  std::vector<double> dsink(static_cast<size_t>(problem.nheads_q));
  for (int64_t b = 0; b < problem.batch; ++b) {
    const SequenceSpan& span = spans[static_cast<size_t>(b)];
    for (int64_t h_k = 0; h_k < problem.nheads_k; ++h_k) {
      KeyHead head{load_rows(problem.k, b, h_k, span.k_begin, span.k_len, problem.headdim),
                   load_rows(problem.v, b, h_k, span.k_begin, span.k_len, problem.headdim_v),
                   Matrix(span.k_len, problem.headdim), Matrix(span.k_len, problem.headdim_v)};
      const int64_t group = problem.qheads_per_khead();
      for (int64_t h = h_k * group; h < (h_k + 1) * group; ++h) {
        dsink[static_cast<size_t>(h)] += run_head(problem, span, b, h, head);
      }
      store_rows(problem.dk, b, h_k, span.k_begin, span.k_len, problem.headdim, head.dk);
      store_rows(problem.dv, b, h_k, span.k_begin, span.k_len, problem.headdim_v, head.dv);
    }
  }
  if (problem.dsink.present()) {
    for (int64_t h = 0; h < problem.nheads_q; ++h) {
      store_element(problem.dsink.data, problem.dsink.dtype, h * problem.dsink.stride, dsink[static_cast<size_t>(h)]);
    }
  }
  return Status::ok();
}

}  // namespace tandem::reference
