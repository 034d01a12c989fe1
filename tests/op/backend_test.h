#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <vector>

#include "compare.h"
#include "float_types.h"
#include "problem.h"
#include "runner.h"
#include "target.h"
#include "tensor_core_sum.h"

namespace tandem::optest {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A test that runs once on each target.
class BackendTest : public ::testing::TestWithParam<Target> {
 protected:
  const Target& target() const { return GetParam(); }
  int32_t backend() const { return target().backend; }
  bool gradients() const { return target().gradients; }

  // Problems in the target's type and head dims, if it has any.
  Problem dense(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k, int64_t headdim,
                int32_t dtype = TANDEM_FP32) const {
    return fitted(dense_problem(batch, seqlen_q, seqlen_k, nheads_q, nheads_k, headdim, dtype), target());
  }
  Problem packed(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k, int64_t nheads_q,
                 int64_t nheads_k, int64_t headdim, int32_t dtype = TANDEM_FP32) const {
    return fitted(packed_problem(lengths_q, lengths_k, nheads_q, nheads_k, headdim, dtype), target());
  }
  std::vector<int32_t> dtypes(std::initializer_list<int32_t> all) const {
    return target().fixed() ? std::vector<int32_t>{target().dtype} : all;
  }
  std::vector<int64_t> headdims(std::initializer_list<int64_t> all) const {
    return target().fixed() ? std::vector<int64_t>{target().headdim} : all;
  }

  Results forward(const Problem& problem, const Inputs& inputs) const {
    return run_forward(problem, inputs, backend());
  }
  // Forward and backward; the gradients are empty on a target that has none.
  Results both(const Problem& problem, const Inputs& inputs) const {
    return gradients() ? run_both(problem, inputs, backend()) : run_forward(problem, inputs, backend());
  }
  // As both(), for tests that compare bits: without gradients on a target that cannot repeat theirs.
  Results repeatable(Problem problem, const Inputs& inputs) const {
    if (!gradients() || !target().deterministic) return forward(problem, inputs);
    problem.deterministic = true;
    return both(problem, inputs);
  }
  // On random inputs, within the contract's tolerance.
  void expect_correct(const Problem& problem, uint64_t seed) const {
    SCOPED_TRACE(describe(problem));
    EXPECT_EQ(fault(problem, random_inputs(problem, seed)), "");
  }
  std::string fault(const Problem& problem, const Inputs& inputs) const {
    return check_problem(problem, inputs, backend(), gradients());
  }

  // Of results that a test has put together from several runs, or taken from one: empty, or what is wrong with them.
  std::string mismatch(const Problem& problem, const Inputs& inputs, const Results& results, bool gradients) const {
    return compare_with_oracle(problem, inputs, results, oracle_for(backend(), problem, inputs, gradients),
                               fp8_sums_of(backend()));
  }

  // As the target sums it up; e4m3 has no scales here.
  double dot(int64_t count, const double* a, const double* b) const {
    if (target().dtype == TANDEM_E4M3 && fp8_sums_of(backend()) == Fp8Sums::kByTensorCores) {
      return tensor_core_sum(count, [&](int64_t n) { return a[n]; }, [&](int64_t n) { return b[n]; });
    }
    return std::inner_product(a, a + count, b, 0.0);
  }

  // Of one value of O worked out by hand: P and O are rounded to the type.
  double tolerance(double magnitude) const {
    return target().fixed() ? 2 * ulp(target().dtype, magnitude) : 1e-6 * std::max(1.0, magnitude);
  }
  // Of the difference, in fp32, of two equal sums of `terms` products with these magnitudes in all.
  static double cancelled(int64_t terms, double magnitudes) {
    return static_cast<double>(terms) * 0x1p-24 * magnitudes;
  }
  double lse_tolerance(double lse) const { return (target().fixed() ? 1e-5 : 1e-6) * std::max(1.0, std::fabs(lse)); }
};

inline std::string target_test_name(const ::testing::TestParamInfo<Target>& info) {
  return info.param.name;
}

// For tests of numbers that e4m3 does not hold: infinities, those beyond 448, and such as are worked out by hand to
// more than 3 bits of mantissa.
#define TANDEM_SKIP_IN_E4M3() \
  if (target().dtype == TANDEM_E4M3) GTEST_SKIP() << "e4m3 does not hold its numbers"

#define TANDEM_ON_EACH_TARGET(Suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(Each, Suite, ::testing::ValuesIn(::tandem::optest::targets()), \
                           ::tandem::optest::target_test_name)

// For suites about what only some can do; a program's targets may have none of these.
inline std::vector<Target> targets_where(bool (*can)(const Target&)) {
  std::vector<Target> result;
  for (Target& target : targets()) {
    if (can(target)) result.push_back(std::move(target));
  }
  return result;
}
inline bool has_gradients(const Target& target) {
  return target.gradients;
}
inline bool has_deterministic_gradients(const Target& target) {
  return target.gradients && target.deterministic;
}
inline bool has_any_head_dims(const Target& target) {
  return !target.fixed();
}

#define TANDEM_ON_TARGETS_WHERE(can, Suite)                                                        \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Suite);                                            \
  INSTANTIATE_TEST_SUITE_P(Each, Suite, ::testing::ValuesIn(::tandem::optest::targets_where(can)), \
                           ::tandem::optest::target_test_name)

// Rows of `columns` values, the given ones in the first columns, 0 in the others.
inline std::vector<double> in_first_column(const std::vector<double>& values, int64_t columns) {
  std::vector<double> rows(values.size() * static_cast<size_t>(columns));
  for (size_t n = 0; n < values.size(); ++n) rows[n * static_cast<size_t>(columns)] = values[n];
  return rows;
}

// Rows of `columns` values, all of a row the same.
inline std::vector<double> in_all_columns(const std::vector<double>& values, int64_t columns) {
  std::vector<double> rows;
  for (double value : values) rows.insert(rows.end(), static_cast<size_t>(columns), value);
  return rows;
}

// Rows [begin, begin + count) of `width` values.
inline std::vector<double> rows_of(const std::vector<double>& values, int64_t begin, int64_t count, int64_t width) {
  if (values.empty()) return {};
  return std::vector<double>(values.begin() + begin * width, values.begin() + (begin + count) * width);
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

inline void expect_same_bits(const Results& a, const Results& b) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
  EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
  EXPECT_TRUE(same_bits(a.dv, b.dv)) << "dv";
  EXPECT_TRUE(same_bits(a.dsink, b.dsink)) << "dsink";
}

inline void expect_all(const std::vector<double>& values, double expected) {
  for (size_t n = 0; n < values.size(); ++n) ASSERT_EQ(values[n], expected) << "element " << n;
}

inline void expect_near(const std::vector<double>& values, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t n = 0; n < values.size(); ++n) ASSERT_NEAR(values[n], expected[n], tolerance) << "element " << n;
}

}  // namespace tandem::optest
