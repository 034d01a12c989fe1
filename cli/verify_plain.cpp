#include "verify_plain.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "float_formats.h"

namespace tandem::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of a sum of e4m3 products, in units of the sum of their magnitudes: what a tensor core that cuts all terms at 13 bits
// below the largest may be off by. docs/ALGORITHM.md, "In e4m3".
constexpr double kTensorCoreError = 0x1p-11;

// Does row i of sequence b see key j? The rule as tandem.h states it.
bool sees(const VerifyCase& c, const CaseInputs& inputs, const SequenceRows& rows, int64_t b, int64_t head, int64_t i,
          int64_t j) {
  const int64_t position = i + (c.top_left ? 0 : rows.k_len - rows.q_len);
  if (c.causal && j > position) return false;
  if (c.has_window && c.window_left >= 0 && j < position - c.window_left) return false;
  if (c.has_window && c.window_right >= 0 && j > position + c.window_right) return false;
  if (c.chunk > 0) {
    const double chunk = static_cast<double>(c.chunk);
    if (std::floor(static_cast<double>(j) / chunk) != std::floor(static_cast<double>(position) / chunk)) return false;
  }
  if (c.lo && j < inputs.lo.at(interval_index(c, b, head, i))) return false;
  if (c.hi && j >= inputs.hi.at(interval_index(c, b, head, i))) return false;
  return true;
}

class Plain {
 public:
  Plain(const VerifyCase& c, const CaseInputs& inputs)
      : c_(c),
        inputs_(inputs),
        q_(decoded(inputs.q, inputs.q_scale)),
        k_(decoded(inputs.k, inputs.k_scale)),
        v_(decoded(inputs.v, inputs.v_scale)),
        dout_(inputs.dout.to_doubles()),
        // fp8 products and sums are fp32 everywhere; only P is ever rounded to fp8.
        type_(c.fp8() ? static_cast<int32_t>(TANDEM_FP32) : c.dtype),
        arithmetic_unit_(unit_in_last_place(c.dtype == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32, 1)),
        stored_unit_(unit_in_last_place(c.out_dtype, 1) / 2) {
    size(kResultOut, c.rows_q() * c.nheads_q * c.headdim_v);
    size(kResultLse, c.rows_q() * c.nheads_q);
    std::fill(values(kResultLse).begin(), values(kResultLse).end(), -kInfinity);
    if (!c.backward) return;
    size(kResultDq, inputs.q.size());
    size(kResultDk, inputs.k.size());
    size(kResultDv, inputs.v.size());
    if (c.sink) size(kResultDsink, c.nheads_q);
  }

  PlainAttention run() {
    for (int64_t b = 0; b < c_.batch(); ++b) {
      rows_ = sequence_rows(c_, b);
      for (int64_t head = 0; head < c_.nheads_q; ++head) {
        for (int64_t i = 0; i < rows_.q_len; ++i) run_row(b, head, i);
      }
    }
    for (const Result result : {kResultDq, kResultDk, kResultDv}) {
      for (double& value : values(result)) value = round_to(type_, value);
    }
    for (int result = 0; result < kResultCount; ++result) {
      const Values& rounding = rounding_[result];
      if (!rounding.empty()) plain_.rounding[result] = *std::max_element(rounding.begin(), rounding.end());
    }
    return std::move(plain_);
  }

 private:
  struct Key {
    int64_t at;          // index of its row and head in k and v, in rows
    double score;        // S, rounded
    double score_terms;  // sum of the absolute terms of S
    double probability;  // P, rounded
  };

  Values& values(Result result) { return plain_.result.values[result]; }

  void size(Result result, int64_t elems) {
    values(result).assign(static_cast<size_t>(elems), 0);
    rounding_[result].assign(static_cast<size_t>(elems), 0);
  }

  void add(Result result, int64_t index, double value, double rounding) {
    values(result)[static_cast<size_t>(index)] += value;
    rounding_[result][static_cast<size_t>(index)] += rounding;
  }

  void run_row(int64_t b, int64_t head, int64_t i) {
    row_ = (rows_.q_begin + i) * c_.nheads_q + head;
    head_ = head;
    lse_at_ = static_cast<size_t>(lse_index(c_, b, head, i));
    find_keys(b, head, i);
    normalise();
    write_out();
    if (c_.backward) run_row_backward();
  }

  void find_keys(int64_t b, int64_t head, int64_t i) {
    keys_.clear();
    const int64_t k_head = head / (c_.nheads_q / c_.nheads_k);
    for (int64_t j = 0; j < rows_.k_len; ++j) {
      if (!sees(c_, inputs_, rows_, b, head, i, j)) continue;
      Key key{(rows_.k_begin + j) * c_.nheads_k + k_head, 0, 0, 0};
      for (int64_t d = 0; d < c_.headdim; ++d) {
        const double term = c_.softmax_scale() * q(d) * k(key, d);
        key.score += term;
        key.score_terms += std::fabs(term);
      }
      key.score = round_to(type_, key.score);
      if (c_.softcap > 0) key.score = round_to(type_, c_.softcap * std::tanh(key.score / c_.softcap));
      keys_.push_back(key);
    }
  }

  void normalise() {
    double row_max = c_.sink ? inputs_.sink.at(head_) : -kInfinity;
    for (const Key& key : keys_) row_max = std::max(row_max, key.score);
    if (row_max == -kInfinity) return;
    double row_sum = c_.sink ? std::exp(inputs_.sink.at(head_) - row_max) : 0;
    for (const Key& key : keys_) row_sum += std::exp(key.score - row_max);
    for (Key& key : keys_) key.probability = round_probability(std::exp(key.score - row_max), row_sum);
    values(kResultLse)[lse_at_] = row_max + std::log(row_sum);
    if (!c_.fp8()) return;
    for (const Key& key : keys_) {
      double& rounding = rounding_[kResultLse][lse_at_];
      rounding = std::max(rounding, kTensorCoreError * key.score_terms);
    }
  }

  double round_probability(double weight, double row_sum) const {
    constexpr double kLargestE4m3 = 448;
    if (c_.fp8()) return round_to(TANDEM_E4M3, weight * kLargestE4m3) / kLargestE4m3 / row_sum;
    return round_to(type_, weight / row_sum);
  }

  void write_out() {
    for (int64_t d = 0; d < c_.headdim_v; ++d) {
      double sum = 0;
      double rounding = 0;
      for (const Key& key : keys_) {
        const double term = key.probability * v(key, d);
        sum += term;
        rounding += std::fabs(term) * (1 + key.score_terms) * arithmetic_unit_;
      }
      add(kResultOut, row_ * c_.headdim_v + d, round_to(c_.fp8() ? c_.out_dtype : type_, sum), rounding);
    }
  }

  void run_row_backward() {
    double delta = 0;
    double delta_terms = 0;    // absolute sum
    double delta_squares = 0;  // for the rounding of the stored O, whose errors are independent
    for (int64_t d = 0; d < c_.headdim_v; ++d) {
      const double term = dout(d) * values(kResultOut)[static_cast<size_t>(row_ * c_.headdim_v + d)];
      delta += term;
      delta_terms += std::fabs(term);
      delta_squares += term * term;
    }
    const double lse = values(kResultLse)[lse_at_];
    if (c_.dlse && std::isfinite(lse)) {
      const double dlse = inputs_.dlse.at(static_cast<int64_t>(lse_at_));
      delta -= dlse;
      delta_terms += std::fabs(dlse);
    }
    const double delta_rounding = 2 * stored_unit_ * std::sqrt(delta_squares);
    for (const Key& key : keys_) run_key_backward(key, delta, delta_terms, delta_rounding);
    if (c_.sink) {
      const double weight = std::exp(inputs_.sink.at(head_) - lse);
      add(kResultDsink, head_, -weight * delta, weight * (delta_terms * 2 * arithmetic_unit_ + delta_rounding));
    }
  }

  void run_key_backward(const Key& key, double delta, double delta_terms, double delta_rounding) {
    double dp = 0;
    double dp_terms = 0;
    for (int64_t d = 0; d < c_.headdim_v; ++d) {
      dp += dout(d) * v(key, d);
      dp_terms += std::fabs(dout(d) * v(key, d));
      add(kResultDv, key.at * c_.headdim_v + d, key.probability * dout(d),
          std::fabs(key.probability * dout(d)) * (1 + key.score_terms) * arithmetic_unit_);
    }
    const double ratio = c_.softcap > 0 ? key.score / c_.softcap : 0;
    const double ds = round_to(type_, key.probability * (round_to(type_, dp) - delta) * (1 - ratio * ratio));
    const double ds_rounding =
        key.probability * ((dp_terms + delta_terms) * (1 + key.score_terms) * arithmetic_unit_ + delta_rounding);
    const double scale = c_.softmax_scale();
    for (int64_t d = 0; d < c_.headdim; ++d) {
      add(kResultDq, row_ * c_.headdim + d, scale * ds * k(key, d), std::fabs(scale * k(key, d)) * ds_rounding);
      add(kResultDk, key.at * c_.headdim + d, scale * ds * q(d), std::fabs(scale * q(d)) * ds_rounding);
    }
  }

  double q(int64_t d) const { return q_[static_cast<size_t>(row_ * c_.headdim + d)]; }
  double k(const Key& key, int64_t d) const { return k_[static_cast<size_t>(key.at * c_.headdim + d)]; }
  double v(const Key& key, int64_t d) const { return v_[static_cast<size_t>(key.at * c_.headdim_v + d)]; }
  double dout(int64_t d) const { return dout_[static_cast<size_t>(row_ * c_.headdim_v + d)]; }

  const VerifyCase& c_;
  const CaseInputs& inputs_;
  const Values q_, k_, v_, dout_;
  const int32_t type_;
  const double arithmetic_unit_;  // relative error of a sum of products
  const double stored_unit_;      // relative error of the O that the forward hands to the backward
  PlainAttention plain_;
  Values rounding_[kResultCount];

  SequenceRows rows_;
  int64_t row_ = 0;  // the query row and head, in rows of headdim
  int64_t head_ = 0;
  size_t lse_at_ = 0;
  std::vector<Key> keys_;
};

}  // namespace

const char* const kResultNames[kResultCount] = {"out", "lse", "dq", "dk", "dv", "dsink"};

PlainAttention plain_attention(const VerifyCase& c, const CaseInputs& inputs) {
  return Plain(c, inputs).run();
}

Values decoded(const TensorBuffer& tensor, const TensorBuffer& factor) {
  Values values = tensor.to_doubles();
  if (!factor.present()) return values;
  for (double& value : values) value *= factor.at(0);
  return values;
}

}  // namespace tandem::cli
