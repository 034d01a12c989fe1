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
};

// One plain attention, and what its errors count for.
struct Plain {
  Rounding rounding;
  bool out = true;
  bool lse = false;
};

// P in e4m3 is rounded at a scale of its own, free within a factor of two [16]: where one happens to suit a tensor of
// few elements, another does not.
constexpr double kP8Units[] = {256, 256 * 0.95, 256 * 0.85, 256 * 0.75, 256 * 0.65, 256 * 0.55};

// `stored`: the inputs' stored values, which have scales.
std::vector<Plain> plain_in_fp8(const Problem& problem, const Inputs& stored, Fp8Sums sums) {
  std::vector<Plain> all;
  for (const double p_unit : kP8Units) {
    Rounding rounding{0, problem.dtype, problem.out_dtype, 0, 0, 0, p_unit};
    if (sums == Fp8Sums::kByTensorCores && p_unit == kP8Units[0]) {
      Rounding by_tensor_cores = rounding;
      by_tensor_cores.stored = &stored;
      all.push_back({by_tensor_cores, true, true});
    }
    all.push_back({rounding});
  }
  return all;
}

// Plain attention as one would write it over this interface: all in fp32 (fp64 for fp64 inputs), S, P and O rounded to
// the input type; the backward begins from an LSE in its type, correct to the last place. No order of the sums has a
// better claim to be plain than another, so there are several. In 16-bit types, where the order counts for little, each
// rounding is taken by itself instead; and of the gradients, those of O and dS together, with P relative to several
// references [16].
std::vector<Plain> plain_in_its_type(const Problem& problem, bool gradients) {
  const int32_t type = problem.dtype;
  const bool is_16bit = type == TANDEM_FP16 || type == TANDEM_BF16;
  std::vector<Plain> all;
  for (int order = 0; order < (is_16bit ? 1 : kSumOrders); ++order) {
    const int lse_ulps = order % 3 - 1;
    all.push_back({{type, type, type, problem.lse_dtype, lse_ulps, order}});
  }
  if (is_16bit) {
    all.push_back({{type, 0, 0}});
    all.push_back({{0, type, 0}});
    all.push_back({{0, 0, type}});
  }
  if (is_16bit && gradients) {
    for (int n = 1; n <= kPlainReferences; ++n) {
      all.push_back({{0, type, type, problem.lse_dtype, n - 2, 0, 1, nullptr, type, n}, false});
    }
  }
  return all;
}

void include(const Plain& plain, const Problem& problem, const Inputs& real, bool gradients, const Results& oracle,
             PlainErrors& errors) {
  const Results results = problem.dtype == TANDEM_FP64
                              ? dense_attention<double>(problem, real, gradients, plain.rounding)
                              : dense_attention<float>(problem, real, gradients, plain.rounding);
  if (plain.out) errors.out = std::max(errors.out, max_error(results.out, oracle.out));
  errors.dq = std::max(errors.dq, max_error(results.dq, oracle.dq));
  errors.dk = std::max(errors.dk, max_error(results.dk, oracle.dk));
  errors.dv = std::max(errors.dv, max_error(results.dv, oracle.dv));
  if (plain.lse) errors.lse = max_error(results.lse, oracle.lse);
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

Fp8Sums fp8_sums_of(int32_t backend) {
  return backend == TANDEM_BACKEND_SM90 ? Fp8Sums::kByTensorCores : Fp8Sums::kInFp32;
}

std::string compare_with_oracle(const Problem& problem, const Inputs& inputs, const Results& results,
                                const Results& oracle, Fp8Sums sums) {
  const bool gradients = !oracle.dq.empty() || !oracle.dk.empty();
  const double dq_slack = gradients ? cancellation(problem, inputs, inputs.k) : 0;
  const double dk_slack = gradients ? cancellation(problem, inputs, inputs.q) : 0;
  const auto fault_by = [&](const PlainErrors& plain) {
    std::string fault = compare_tensor("out", results.out, oracle.out, problem.out_dtype, plain.out);
    if (fault.empty()) fault = compare_lse(results.lse, oracle.lse, plain.lse);
    if (!gradients) return fault;
    if (fault.empty()) fault = compare_tensor("dq", results.dq, oracle.dq, problem.dtype, plain.dq, dq_slack);
    if (fault.empty()) fault = compare_tensor("dk", results.dk, oracle.dk, problem.dtype, plain.dk, dk_slack);
    if (fault.empty()) fault = compare_tensor("dv", results.dv, oracle.dv, problem.dtype, plain.dv);
    return fault;
  };
  std::string fault = compare_exact_zeros(problem, results);
  if (!fault.empty()) return fault;

  // Each plain attention can only widen the bounds, so those that follow need not be computed once the results are
  // within.
  const bool is_fp8 = problem.dtype == TANDEM_E4M3;
  const Inputs real = is_fp8 ? real_inputs(problem, inputs) : Inputs{};
  PlainErrors errors;
  fault = fault_by(errors);
  for (const Plain& plain : is_fp8 ? plain_in_fp8(problem, inputs, sums) : plain_in_its_type(problem, gradients)) {
    if (fault.empty()) break;
    include(plain, problem, is_fp8 ? real : inputs, gradients, oracle, errors);
    fault = fault_by(errors);
  }
  return fault.empty() && gradients ? compare_dsink(problem, inputs, results, oracle) : fault;
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
                               oracle_for(backend, with_lse, runner.inputs(), gradients), fp8_sums_of(backend));
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace tandem::optest
