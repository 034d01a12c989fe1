#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compare.h"
#include "problem.h"
#include "runner.h"

namespace tandem::optest {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A test that runs once on each backend of the CPU.
class BackendTest : public ::testing::TestWithParam<int32_t> {
 protected:
  int32_t backend() const { return GetParam(); }
  Results forward(const Problem& problem, const Inputs& inputs) const {
    return run_forward(problem, inputs, backend());
  }
  Results both(const Problem& problem, const Inputs& inputs) const { return run_both(problem, inputs, backend()); }
  // Forward and backward on random inputs, within the contract's tolerance.
  void expect_correct(const Problem& problem, uint64_t seed) const {
    SCOPED_TRACE(describe(problem));
    EXPECT_EQ(check_problem(problem, random_inputs(problem, seed), backend()), "");
  }
};

inline std::string backend_test_name(const ::testing::TestParamInfo<int32_t>& info) {
  return tandem_backend_name(info.param);
}

#define TANDEM_ON_EACH_CPU_BACKEND(Suite)                                                                 \
  INSTANTIATE_TEST_SUITE_P(Cpu, Suite, ::testing::Values(TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_TILED), \
                           ::tandem::optest::backend_test_name)

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
