#include "forward/problem.h"

#include <cmath>
#include <cstdio>
#include <random>

#include "core/dtype.h"

namespace tandem::model {
namespace {

std::vector<uint16_t> normal_values(std::mt19937_64& random, int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = to_bf16(normal(random)).bits;
  return values;
}

// Row i sees keys up to i + diagonal, by `causal`; and by the window at most so many to the left and right of it.
bool sees(const ForwardProblem& p, int64_t row, int64_t key) {
  const int64_t position = row + (p.mask.top_left ? 0 : p.seqlen_k - p.seqlen_q);
  if (p.mask.causal && key > position) return false;
  if (p.mask.window_left >= 0 && key < position - p.mask.window_left) return false;
  return p.mask.window_right < 0 || key <= position + p.mask.window_right;
}

// One row of one head. `row_of(k, key)` gives the key's or value's first element.
struct Row {
  const ForwardProblem& problem;
  const ForwardInputs& inputs;
  int64_t batch, row, head;

  static double element(const std::vector<uint16_t>& values, int64_t index) {
    return to_float(Bf16{values[static_cast<size_t>(index)]});
  }
  int64_t q_index() const { return ((batch * problem.seqlen_q + row) * problem.nheads_q + head) * problem.headdim; }
  int64_t k_index(int64_t key) const {
    const int64_t khead = head / (problem.nheads_q / problem.nheads_k);
    return ((batch * problem.seqlen_k + key) * problem.nheads_k + khead) * problem.headdim;
  }

  // exp(score) of every key, 0 of hidden ones; returns the largest score.
  double weights(std::vector<double>& weight) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(problem.headdim));
    double largest = -INFINITY;
    weight.assign(static_cast<size_t>(problem.seqlen_k), -INFINITY);
    for (int64_t key = 0; key < problem.seqlen_k; ++key) {
      if (!sees(problem, row, key)) continue;
      double score = 0;
      for (int64_t d = 0; d < problem.headdim; ++d) {
        score += element(inputs.q, q_index() + d) * element(inputs.k, k_index(key) + d);
      }
      weight[static_cast<size_t>(key)] = score * scale;
      largest = std::fmax(largest, score * scale);
    }
    for (double& w : weight) w = std::isinf(w) ? 0.0 : std::exp(w - largest);
    return largest;
  }

  void attend(Reference& result, std::vector<double>& weight) const {
    const double largest = weights(weight);
    double sum = 0;
    for (const double w : weight) sum += w;
    const auto lse_index = static_cast<size_t>((batch * problem.nheads_q + head) * problem.seqlen_q + row);
    result.want.lse[lse_index] = sum > 0 ? largest + std::log(sum) : -INFINITY;
    for (int64_t d = 0; d < problem.headdim; ++d) {
      double value = 0;
      double magnitude = 0;
      for (int64_t key = 0; key < problem.seqlen_k; ++key) {
        const double w = sum > 0 ? weight[static_cast<size_t>(key)] / sum : 0.0;
        const double product = w * element(inputs.v, k_index(key) + d);
        value += product;
        magnitude += std::fabs(product);
      }
      const auto index = static_cast<size_t>(q_index() + d);
      result.want.out[index] = value;
      result.allowed[index] = (magnitude + std::fabs(value)) * 0x1p-8 + 1e-30;
    }
  }
};

}  // namespace

std::string ForwardProblem::text() const {
  char text[200];
  std::snprintf(text, sizeof(text),
                "batch %d, heads %d/%d, headdim %d, seqlens %d x %d, causal %d, window %d %d, seed %d",
                static_cast<int>(batch), static_cast<int>(nheads_q), static_cast<int>(nheads_k),
                static_cast<int>(headdim), static_cast<int>(seqlen_q), static_cast<int>(seqlen_k), mask.causal,
                static_cast<int>(mask.window_left), static_cast<int>(mask.window_right), static_cast<int>(seed));
  return text;
}

ForwardInputs make_inputs(const ForwardProblem& p) {
  std::mt19937_64 random(p.seed);
  ForwardInputs inputs;
  inputs.q = normal_values(random, p.batch * p.seqlen_q * p.nheads_q * p.headdim);
  inputs.k = normal_values(random, p.batch * p.seqlen_k * p.nheads_k * p.headdim);
  inputs.v = normal_values(random, p.batch * p.seqlen_k * p.nheads_k * p.headdim);
  return inputs;
}

Reference reference(const ForwardProblem& p, const ForwardInputs& inputs) {
  Reference result;
  result.want.out.resize(inputs.q.size());
  result.allowed.resize(inputs.q.size());
  result.want.lse.resize(static_cast<size_t>(p.batch * p.nheads_q * p.seqlen_q));
  std::vector<double> weight;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t row = 0; row < p.seqlen_q; ++row) {
      for (int64_t head = 0; head < p.nheads_q; ++head) Row{p, inputs, b, row, head}.attend(result, weight);
    }
  }
  return result;
}

std::string difference(const Reference& reference, const ForwardOutputs& got) {
  char text[160];
  for (size_t i = 0; i < got.out.size(); ++i) {
    if (std::fabs(got.out[i] - reference.want.out[i]) <= reference.allowed[i]) continue;
    std::snprintf(text, sizeof(text), "O[%zu]: want %g, got %g, allowed %g", i, reference.want.out[i], got.out[i],
                  reference.allowed[i]);
    return text;
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    const double want = reference.want.lse[i];
    if (got.lse[i] == want || std::fabs(got.lse[i] - want) <= 1e-5 * std::fmax(1.0, std::fabs(want))) continue;
    std::snprintf(text, sizeof(text), "LSE[%zu]: want %.9g, got %.9g", i, want, got.lse[i]);
    return text;
  }
  return "";
}

}  // namespace tandem::model
