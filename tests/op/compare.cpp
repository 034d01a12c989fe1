#include "compare.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <sstream>

#include "dense_attention.h"
#include "float_types.h"
#include "plain_references.h"
#include "runner.h"

namespace tandem::optest {
namespace {

double max_error(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0;
  for (size_t n = 0; n < a.size(); ++n) {
    if (!std::isnan(a[n]) && !std::isnan(b[n]) && a[n] != b[n]) error = std::max(error, std::fabs(a[n] - b[n]));
  }
  return error;
}

double largest(const std::vector<double>& values) {
  double result = 0;
  for (double value : values) {
    if (std::isfinite(value)) result = std::max(result, std::fabs(value));
  }
  return result;
}

// Plain attention's errors. A tensor of few elements may owe a small error to luck, roundings that err in opposite
// directions, so the largest of several is taken. (In a row whose P is near 1, all of dS is the difference of the
// errors of two sums over headdim_v, dP and delta.)
struct PlainErrors {
  double out = 0, dq = 0, dk = 0, dv = 0;
  double lse = 0;  // of scores that the fp8 tensor cores sum

  void include(const Results& plain, const Results& oracle) {
    out = std::max(out, max_error(plain.out, oracle.out));
    include_gradients(plain, oracle);
  }
  void include_gradients(const Results& plain, const Results& oracle) {
    dq = std::max(dq, max_error(plain.dq, oracle.dq));
    dk = std::max(dk, max_error(plain.dk, oracle.dk));
    dv = std::max(dv, max_error(plain.dv, oracle.dv));
  }
};

Results plain_attention(const Problem& problem, const Inputs& inputs, bool gradients, const Rounding& rounding) {
  return problem.dtype == TANDEM_FP64 ? dense_attention<double>(problem, inputs, gradients, rounding)
                                      : dense_attention<float>(problem, inputs, gradients, rounding);
}

// P in e4m3 is rounded at a scale of its own, free within a factor of two [16]: where one happens to suit a tensor of
// few elements, another does not.
constexpr double kP8Units[] = {256, 256 * 0.95, 256 * 0.85, 256 * 0.75, 256 * 0.65, 256 * 0.55};

// The inputs are stored values, which have scales.
PlainErrors plain_fp8_errors(const Problem& problem, const Inputs& stored, const Results& oracle, Fp8Sums sums) {
  const Inputs real = real_inputs(problem, stored);
  PlainErrors errors;
  for (const double p_unit : kP8Units) {
    Rounding rounding{0, problem.dtype, problem.out_dtype, 0, 0, 0, p_unit};
    errors.include(plain_attention(problem, real, false, rounding), oracle);
    if (sums == Fp8Sums::kInFp32 || p_unit != kP8Units[0]) continue;
    rounding.stored = &stored;
    const Results by_tensor_cores = plain_attention(problem, real, false, rounding);
    errors.include(by_tensor_cores, oracle);
    errors.lse = max_error(by_tensor_cores.lse, oracle.lse);
  }
  return errors;
}

// Plain attention as one would write it over this interface: all in fp32 (fp64 for fp64 inputs), S, P and O rounded to
// the input type; the backward begins from an LSE in its type, correct to the last place. No order of the sums has a
// better claim to be plain than another, so there are several. In 16-bit types, where the order counts for little, each
// rounding is taken by itself instead; and of the gradients, those of O and dS together, with P relative to several
// references [16].
PlainErrors plain_errors(const Problem& problem, const Inputs& inputs, bool gradients, const Results& oracle) {
  const int32_t type = problem.dtype;
  const bool is_16bit = type == TANDEM_FP16 || type == TANDEM_BF16;
  PlainErrors errors;
  for (int order = 0; order < (is_16bit ? 1 : kSumOrders); ++order) {
    const int lse_ulps = order % 3 - 1;
    const Rounding rounding{type, type, type, problem.lse_dtype, lse_ulps, order};
    errors.include(plain_attention(problem, inputs, gradients, rounding), oracle);
  }
  if (is_16bit) {
    errors.include(plain_attention(problem, inputs, gradients, {type, 0, 0}), oracle);
    errors.include(plain_attention(problem, inputs, gradients, {0, type, 0}), oracle);
    errors.include(plain_attention(problem, inputs, gradients, {0, 0, type}), oracle);
  }
  if (is_16bit && gradients) {
    for (int n = 1; n <= kPlainReferences; ++n) {
      const Rounding rounding{0, type, type, problem.lse_dtype, n - 2, 0, 1, nullptr, type, n};
      errors.include_gradients(plain_attention(problem, inputs, true, rounding), oracle);
    }
  }
  return errors;
}

std::string compare_tensor(const char* name, const std::vector<double>& got, const std::vector<double>& expected,
                           int32_t dtype, double plain_error, double slack = 0) {
  const double bound = 2 * plain_error + 2 * ulp(dtype, largest(expected)) + slack;
  std::ostringstream text;
  text.precision(9);
  if (got.size() != expected.size()) {
    text << name << " has " << got.size() << " values, not " << expected.size();
    return text.str();
  }
  for (size_t n = 0; n < got.size(); ++n) {
    if (std::isnan(expected[n]) ? std::isnan(got[n]) : std::fabs(got[n] - expected[n]) <= bound) continue;
    text << name << "[" << n << "] is " << got[n] << ", the oracle says " << expected[n] << "; allowed error " << bound
         << " (plain attention's is " << plain_error << ")";
    return text.str();
  }
  return "";
}

std::string compare_lse(const std::vector<double>& got, const std::vector<double>& expected, double plain_error) {
  for (size_t n = 0; n < got.size(); ++n) {
    const double want = expected[n];
    const bool equal = got[n] == want || (std::isnan(want) && std::isnan(got[n]));
    const double bound = 1e-5 * std::max(1.0, std::fabs(want)) + 2 * plain_error;
    if (equal || std::fabs(got[n] - want) <= bound) continue;
    std::ostringstream text;
    text.precision(9);
    text << "lse[" << n << "] is " << got[n] << ", the oracle says " << want << "; allowed error " << bound;
    return text.str();
  }
  return "";
}

// Rows that belong to no sequence are exactly 0 (LSE -inf), as are rows that see no key: the oracle holds an exact 0
// there, and so must we. Elsewhere an exact 0 of the oracle may come out as a rounding error.
std::string compare_exact_zeros(const Problem& problem, const Results& results) {
  std::vector<bool> q_live(static_cast<size_t>(problem.rows_q() * problem.nheads_q));
  std::vector<bool> k_live(static_cast<size_t>(problem.rows_k() * problem.nheads_k));
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = problem.span(b);
    for (int64_t h = 0; h < problem.nheads_q; ++h) {
      const int64_t h_k = h / (problem.nheads_q / problem.nheads_k);
      for (int64_t i = 0; i < span.q_len; ++i) {
        for (int64_t j = 0; j < span.k_len; ++j) {
          if (!visible(problem, b, h, i, j)) continue;
          q_live[static_cast<size_t>((span.q_begin + i) * problem.nheads_q + h)] = true;
          k_live[static_cast<size_t>((span.k_begin + j) * problem.nheads_k + h_k)] = true;
        }
      }
    }
  }
  const auto check = [](const char* name, const std::vector<double>& values, const std::vector<bool>& live,
                        int64_t columns) -> std::string {
    for (size_t n = 0; n < values.size(); ++n) {
      if (live[n / static_cast<size_t>(columns)] || values[n] == 0) continue;
      return std::string(name) + "[" + std::to_string(n) + "] of a row that takes part in nothing is " +
             std::to_string(values[n]) + ", not 0";
    }
    return "";
  };
  std::string fault = check("out", results.out, q_live, problem.headdim_v);
  if (fault.empty()) fault = check("dq", results.dq, q_live, problem.headdim);
  if (fault.empty()) fault = check("dk", results.dk, k_live, problem.headdim);
  if (fault.empty()) fault = check("dv", results.dv, k_live, problem.headdim_v);
  return fault;
}

// The contract gives dsink no tolerance. It is one sum of signed terms over all rows, so the bound is made of their
// magnitudes: O is stored in its type, and LSE and the sum in theirs.
std::string compare_dsink(const Problem& problem, const Inputs& inputs, const Results& results, const Results& oracle) {
  for (int64_t h = 0; h < static_cast<int64_t>(problem.sink.size()); ++h) {
    double bound = 0;
    for (int64_t b = 0; b < problem.batch; ++b) {
      const Span span = problem.span(b);
      for (int64_t i = 0; i < span.q_len; ++i) {
        const size_t row = static_cast<size_t>(problem.lse_index(b, h, i));
        const size_t out_row = static_cast<size_t>(((span.q_begin + i) * problem.nheads_q + h) * problem.headdim_v);
        double magnitude = problem.with_dlse ? std::fabs(inputs.dlse[row]) : 0;
        for (size_t c = out_row; c < out_row + static_cast<size_t>(problem.headdim_v); ++c) {
          magnitude += std::fabs(inputs.dout[c] * oracle.out[c]);
        }
        const double lse_unit = ulp(problem.lse_dtype, std::max(1.0, std::fabs(oracle.lse[row])));
        bound += std::exp(problem.sink[static_cast<size_t>(h)] - oracle.lse[row]) * magnitude *
                 (ulp(problem.out_dtype, 1) + 8 * lse_unit);
      }
    }
    const double got = results.dsink[static_cast<size_t>(h)];
    const double expected = oracle.dsink[static_cast<size_t>(h)];
    if (std::isnan(expected) ? std::isnan(got) : std::fabs(got - expected) <= bound) continue;
    std::ostringstream text;
    text.precision(9);
    text << "dsink[" << h << "] is " << got << ", the oracle says " << expected << "; allowed error " << bound;
    return text.str();
  }
  return "";
}

double largest_finite(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) result = std::isfinite(value) ? std::max(result, std::fabs(value)) : result;
  return result;
}

// dS is P (dP - delta). Where the two cancel, as for a row that sees one key, the oracle's 0 is fp32's rounding of sums
// over headdim_v products in any arithmetic that does not form both in the same order: 2^-22 of the largest they can
// be. Types of 16 bits only; far below their own rounding elsewhere.
double cancellation(const Problem& problem, const Inputs& inputs, const std::vector<double>& other) {
  if (problem.dtype != TANDEM_FP16 && problem.dtype != TANDEM_BF16) return 0;
  return std::ldexp(1.0, -22) * std::fabs(problem.scale()) * static_cast<double>(problem.headdim_v) *
         largest_finite(inputs.dout) * largest_finite(inputs.v) * largest_finite(other);
}

}  // namespace

std::string compare_with_oracle(const Problem& problem, const Inputs& inputs, const Results& results,
                                const Results& oracle, Fp8Sums sums) {
  const bool gradients = !oracle.dq.empty() || !oracle.dk.empty();
  const PlainErrors plain = problem.dtype == TANDEM_E4M3 ? plain_fp8_errors(problem, inputs, oracle, sums)
                                                         : plain_errors(problem, inputs, gradients, oracle);
  std::string fault = compare_exact_zeros(problem, results);
  if (fault.empty()) fault = compare_tensor("out", results.out, oracle.out, problem.out_dtype, plain.out);
  if (fault.empty()) fault = compare_lse(results.lse, oracle.lse, plain.lse);
  if (!gradients) return fault;
  const double dq_slack = cancellation(problem, inputs, inputs.k);
  const double dk_slack = cancellation(problem, inputs, inputs.q);
  if (fault.empty()) fault = compare_tensor("dq", results.dq, oracle.dq, problem.dtype, plain.dq, dq_slack);
  if (fault.empty()) fault = compare_tensor("dk", results.dk, oracle.dk, problem.dtype, plain.dk, dk_slack);
  if (fault.empty()) fault = compare_tensor("dv", results.dv, oracle.dv, problem.dtype, plain.dv);
  return fault.empty() ? compare_dsink(problem, inputs, results, oracle) : fault;
}

Results oracle_for(int32_t backend, const Problem& problem, const Inputs& stored, bool gradients) {
  const Inputs inputs = real_inputs(problem, stored);
  if (problem.dtype == TANDEM_FP64) return dense_attention<long double>(problem, inputs, gradients);
  if (backend == TANDEM_BACKEND_REFERENCE) return dense_attention<double>(problem, inputs, gradients);
  const Problem exact = in_double(problem);
  return gradients ? run_both(exact, inputs, TANDEM_BACKEND_REFERENCE)
                   : run_forward(exact, inputs, TANDEM_BACKEND_REFERENCE);
}

std::string check_problem(const Problem& problem, const Inputs& inputs, int32_t backend, bool gradients) {
  try {
    Problem with_lse = problem;
    with_lse.with_lse = true;
    Runner runner(with_lse, inputs, backend);
    const auto failed = [](const char* call) { return std::string(call) + ": " + tandem_last_error(); };
    if (runner.forward() != TANDEM_OK) return failed("forward");
    if (gradients && runner.backward() != TANDEM_OK) return failed("backward");
    if (!runner.damage().empty()) return runner.damage();
    return compare_with_oracle(with_lse, runner.inputs(), runner.results(),
                               oracle_for(backend, with_lse, runner.inputs(), gradients),
                               backend == TANDEM_BACKEND_SM90 ? Fp8Sums::kByTensorCores : Fp8Sums::kInFp32);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace tandem::optest
