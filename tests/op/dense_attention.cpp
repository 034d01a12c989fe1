#include "dense_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "float_types.h"
#include "plain_references.h"
#include "tensor_core_sum.h"

namespace tandem::optest {
namespace {

constexpr int64_t kScaleRows = 128;  // of a block with a scale of its own

template <typename Real>
Real rounded(int32_t dtype, Real value) {
  return dtype == TANDEM_DTYPE_NONE ? value : static_cast<Real>(round_to(dtype, static_cast<double>(value)));
}

// One head of one sequence. Matrices are (q_len, k_len).
template <typename Real>
class Head {
 public:
  using Matrix = std::vector<Real>;

  Head(const Problem& problem, const Inputs& inputs, const Rounding& rounding, int64_t b, int64_t h)
      : problem_(problem), inputs_(inputs), rounding_(rounding), b_(b), h_(h), span_(problem.span(b)) {
    const size_t size = static_cast<size_t>(span_.q_len * span_.k_len);
    mask_.resize(size);
    scores_.resize(size);
    p_.resize(size);
    out_.resize(static_cast<size_t>(span_.q_len * problem.headdim_v));
    for (int64_t i = 0; i < span_.q_len; ++i) {
      for (int64_t j = 0; j < span_.k_len; ++j) mask_[at(i, j)] = visible(problem, b, h, i, j);
    }
  }

  void forward(Results& results) {
    for (int64_t i = 0; i < span_.q_len; ++i) {
      compute_scores(i);
      const Real lse = softmax(i);
      results.lse[static_cast<size_t>(problem_.lse_index(b_, h_, i))] = static_cast<double>(lse);
      Real* out = &out_[static_cast<size_t>(i * problem_.headdim_v)];
      if (rounding_.stored != nullptr) {
        multiply_by_tensor_cores(i, out);
      } else {
        for (int64_t n = 0; n < span_.k_len; ++n) {
          const int64_t j = nth(n, span_.k_len);
          if (mask_[at(i, j)]) add_scaled(out, p_[at(i, j)], &inputs_.v[v_index(j)], problem_.headdim_v);
        }
      }
      for (int64_t c = 0; c < problem_.headdim_v; ++c) {
        out[c] = rounded(rounding_.out, out[c]);
        results.out[out_index(i) + static_cast<size_t>(c)] = static_cast<double>(out[c]);
      }
    }
  }

  // dV = P^T dO; dP = dO V^T; dS = P (dP - delta), times the slope of the cap; dQ = scale dS K; dK = scale dS^T Q. The
  // heads of a group share their key head's rows of dk and dv.
  void backward(Results& results, Matrix& dk, Matrix& dv) const {
    for (int64_t row = 0; row < span_.q_len; ++row) {
      const int64_t i = nth(row, span_.q_len);
      const double lse = results.lse[static_cast<size_t>(problem_.lse_index(b_, h_, i))];
      if (lse == -std::numeric_limits<double>::infinity()) continue;
      const Real delta = delta_of(i, lse);
      const Real lse_stored = stored_lse(lse);
      Matrix dq(static_cast<size_t>(problem_.headdim));
      for (int64_t n = 0; n < span_.k_len; ++n) {
        const int64_t j = nth(n, span_.k_len);
        if (!mask_[at(i, j)]) continue;
        const Real p = probability(i, j, lse_stored);
        const Real ds = static_cast<Real>(problem_.scale()) * score_gradient(i, j, p, lse_stored, delta);
        add_scaled(dq.data(), ds, &inputs_.k[k_index(j)], problem_.headdim);
        add_scaled(&dk[k_index(j)], ds, &inputs_.q[q_index(i)], problem_.headdim);
        add_scaled(&dv[v_index(j)], p, &inputs_.dout[out_index(i)], problem_.headdim_v);
      }
      for (size_t c = 0; c < dq.size(); ++c) results.dq[q_index(i) + c] = static_cast<double>(dq[c]);
      if (problem_.sink.empty()) continue;
      const double p_sink = std::exp(problem_.sink[static_cast<size_t>(h_)] - lse);
      results.dsink[static_cast<size_t>(h_)] -= p_sink * static_cast<double>(delta);
    }
  }

 private:
  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(i * span_.k_len + j); }
  int64_t head_k() const { return h_ / (problem_.nheads_q / problem_.nheads_k); }
  size_t q_index(int64_t i) const {
    return static_cast<size_t>(((span_.q_begin + i) * problem_.nheads_q + h_) * problem_.headdim);
  }
  size_t out_index(int64_t i) const {
    return static_cast<size_t>(((span_.q_begin + i) * problem_.nheads_q + h_) * problem_.headdim_v);
  }
  size_t k_index(int64_t j) const {
    return static_cast<size_t>(((span_.k_begin + j) * problem_.nheads_k + head_k()) * problem_.headdim);
  }
  size_t v_index(int64_t j) const {
    return static_cast<size_t>(((span_.k_begin + j) * problem_.nheads_k + head_k()) * problem_.headdim_v);
  }

  // Up or down, from an end or from a third of the way.
  static int64_t nth_of(int order, int64_t n, int64_t count) {
    const int64_t start = count * (order / 2) / (kSumOrders / 2);
    const int64_t index = n + start < count ? n + start : n + start - count;
    return order % 2 == 0 ? index : count - 1 - index;
  }

  int64_t nth(int64_t n, int64_t count) const { return nth_of(rounding_.order, n, count); }

  template <typename A>
  static Real dot(const A* a, const double* b, int64_t length, int order) {
    Real sum = 0;
    for (int64_t n = 0; n < length; ++n) {
      const int64_t c = nth_of(order, n, length);
      sum += static_cast<Real>(a[c]) * static_cast<Real>(b[c]);
    }
    return sum;
  }

  static void add_scaled(Real* sum, Real factor, const double* row, int64_t length) {
    for (int64_t c = 0; c < length; ++c) sum[c] += factor * static_cast<Real>(row[c]);
  }

  void compute_scores(int64_t i) {
    const Real cap = static_cast<Real>(problem_.softcap);
    for (int64_t j = 0; j < span_.k_len; ++j) {
      if (!mask_[at(i, j)]) continue;
      const Real product = rounding_.stored != nullptr
                               ? tensor_core_product(i, j)
                               : dot(&inputs_.q[q_index(i)], &inputs_.k[k_index(j)], problem_.headdim, rounding_.order);
      const Real s = rounded(rounding_.scores, static_cast<Real>(problem_.scale()) * product);
      scores_[at(i, j)] = cap > 0 ? cap * std::tanh(s / cap) : s;
    }
  }

  double scale_of(const std::optional<ScaleSet>& scales, int64_t head, int64_t nheads, int64_t row) const {
    return scales ? scales->at(b_, head, nheads, row) : 1;
  }

  Real tensor_core_product(int64_t i, int64_t j) const {
    const double* q = &rounding_.stored->q[q_index(i)];
    const double* k = &rounding_.stored->k[k_index(j)];
    const double sum =
        tensor_core_sum(problem_.headdim, [&](int64_t c) { return q[c]; }, [&](int64_t c) { return k[c]; });
    return static_cast<Real>(sum * scale_of(problem_.q_scale, h_, problem_.nheads_q, i) *
                             scale_of(problem_.k_scale, head_k(), problem_.nheads_k, j));
  }

  // O of row i. An accumulator holds no two blocks that have scales of their own.
  void multiply_by_tensor_cores(int64_t i, Real* out) const {
    const double unit = rounding_.p_unit * static_cast<double>(row_sum_);
    const int64_t keys = problem_.v_scale && problem_.v_scale->blocks > 1 ? kScaleRows : kTensorCoreKeys;
    std::vector<double> p8(static_cast<size_t>(span_.k_len));
    for (int64_t j = 0; j < span_.k_len; ++j) {
      if (!mask_[at(i, j)]) continue;
      p8[static_cast<size_t>(j)] = round_to(rounding_.probabilities, static_cast<double>(p_[at(i, j)]) * unit);
    }
    for (int64_t first = 0; first < span_.k_len; first += keys) {
      const double scale = scale_of(problem_.v_scale, head_k(), problem_.nheads_k, first);
      const double* p = &p8[static_cast<size_t>(first)];
      const double* v = &rounding_.stored->v[v_index(first)];
      const int64_t step = problem_.nheads_k * problem_.headdim_v;
      for (int64_t c = 0; c < problem_.headdim_v; ++c) {
        const double sum = tensor_core_sum(
            std::min(keys, span_.k_len - first), [&](int64_t n) { return p[n]; },
            [&](int64_t n) { return mask_[at(i, first + n)] ? v[n * step + c] : 0; });
        out[c] += static_cast<Real>(sum * scale / unit);
      }
    }
  }

  // The n-th largest of row i's scores, equal ones counted once; the last one before, where the next is too small to be
  // its softmax's reference.
  Real nth_largest_score(int64_t i, int n) const {
    const Real infinity = std::numeric_limits<Real>::infinity();
    Real found = infinity;
    for (int count = 0; count < n; ++count) {
      Real next = -infinity;
      for (int64_t j = 0; j < span_.k_len; ++j) {
        if (mask_[at(i, j)] && scores_[at(i, j)] < found) next = std::fmax(next, scores_[at(i, j)]);
      }
      if (next == -infinity || (count > 0 && !may_be_reference(next, nth_largest_score(i, 1)))) break;
      found = next;
    }
    return found;
  }

  // exp(score - largest) / sum, rounded relative to the row's reference.
  Real rounded_p(Real score, Real largest, Real sum, Real reference) const {
    const Real unit = static_cast<Real>(rounding_.p_unit);
    if (unit == 0) return rounded(rounding_.probabilities, std::exp(score - largest) / sum);
    return rounded(rounding_.probabilities, std::exp(score - reference) * unit) / unit * std::exp(reference - largest) /
           sum;
  }

  // Fills the row of P and returns its LSE.
  Real softmax(int64_t i) {
    const Real infinity = std::numeric_limits<Real>::infinity();
    const Real sink = problem_.sink.empty() ? -infinity : static_cast<Real>(problem_.sink[static_cast<size_t>(h_)]);
    Real largest = sink;
    bool empty = true;
    for (int64_t j = 0; j < span_.k_len; ++j) {
      if (!mask_[at(i, j)]) continue;
      largest = std::fmax(largest, scores_[at(i, j)]);
      empty = false;
    }
    if (empty) return sink;
    Real sum = std::exp(sink - largest);
    for (int64_t n = 0; n < span_.k_len; ++n) {
      const int64_t j = nth(n, span_.k_len);
      if (mask_[at(i, j)]) sum += std::exp(scores_[at(i, j)] - largest);
    }
    row_sum_ = sum;
    const Real reference = rounding_.reference == 0 ? largest : nth_largest_score(i, rounding_.reference);
    for (int64_t j = 0; j < span_.k_len; ++j) {
      if (mask_[at(i, j)]) p_[at(i, j)] = rounded_p(scores_[at(i, j)], largest, sum, reference);
    }
    return largest + std::log(sum);
  }

  Real stored_lse(double lse) const {
    if (rounding_.lse == TANDEM_DTYPE_NONE) return static_cast<Real>(lse);
    const double nearest = round_to(rounding_.lse, lse);
    return static_cast<Real>(nearest + rounding_.lse_ulps * ulp(rounding_.lse, std::fabs(nearest)));
  }

  // As the backward has it.
  Real probability(int64_t i, int64_t j, Real lse) const {
    if (rounding_.lse == TANDEM_DTYPE_NONE) return p_[at(i, j)];
    return rounded(rounding_.probabilities, std::exp(scores_[at(i, j)] - lse));
  }

  Real delta_of(int64_t i, double lse) const {
    const Real* out = &out_[static_cast<size_t>(i * problem_.headdim_v)];
    const int order = (rounding_.order + 1) % kSumOrders;
    const Real delta = dot(out, &inputs_.dout[out_index(i)], problem_.headdim_v, order);
    if (!problem_.with_dlse || !std::isfinite(lse)) return delta;
    return delta - static_cast<Real>(inputs_.dlse[static_cast<size_t>(problem_.lse_index(b_, h_, i))]);
  }

  Real score_gradient(int64_t i, int64_t j, Real p, Real lse, Real delta) const {
    const double* dout = &inputs_.dout[out_index(i)];
    Real ds = dot(dout, &inputs_.v[v_index(j)], problem_.headdim_v, rounding_.order) - delta;
    if (problem_.softcap > 0) {
      const Real ratio = scores_[at(i, j)] / static_cast<Real>(problem_.softcap);
      ds *= 1 - ratio * ratio;
    }
    if (rounding_.score_gradients == TANDEM_DTYPE_NONE) return p * ds;
    return rounded(rounding_.score_gradients, std::exp(scores_[at(i, j)] - lse) * ds);
  }

  const Problem& problem_;
  const Inputs& inputs_;
  const Rounding& rounding_;
  int64_t b_;
  int64_t h_;
  Span span_;
  std::vector<char> mask_;
  Matrix scores_;
  Matrix p_;
  Matrix out_;  // (q_len, headdim_v)
  Real row_sum_ = 0;
};

}  // namespace

template <typename Real>
Results dense_attention(const Problem& problem, const Inputs& inputs, bool gradients, const Rounding& rounding) {
  Results results;
  results.out.assign(inputs.dout.size(), 0);
  results.lse.assign(inputs.dlse.size(), -std::numeric_limits<double>::infinity());
  if (gradients) {
    results.dq.assign(inputs.q.size(), 0);
    results.dsink.assign(problem.sink.size(), 0);
  }
  std::vector<Real> dk(gradients ? inputs.k.size() : 0);
  std::vector<Real> dv(gradients ? inputs.v.size() : 0);
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.nheads_q; ++h) {
      Head<Real> head(problem, inputs, rounding, b, h);
      head.forward(results);
      if (gradients) head.backward(results, dk, dv);
    }
  }
  results.dk.assign(dk.begin(), dk.end());
  results.dv.assign(dv.begin(), dv.end());
  return results;
}

template Results dense_attention<float>(const Problem&, const Inputs&, bool, const Rounding&);
template Results dense_attention<double>(const Problem&, const Inputs&, bool, const Rounding&);
template Results dense_attention<long double>(const Problem&, const Inputs&, bool, const Rounding&);

}  // namespace tandem::optest
