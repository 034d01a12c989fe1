#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backward_problem.h"
#include "op_targets.h"

namespace tandem::gpu_test {

// A test of gradients that runs once on each target; skipped, with the backend's sentence, on one that has none.
class BackwardTest : public testing::TestWithParam<optest::Target> {
 protected:
  void SetUp() override {
    if (is_forward_only()) GTEST_SKIP() << "TANDEM_FORWARD_ONLY=1";
    if (!GetParam().gradients) GTEST_SKIP() << backward_refusal(GetParam());
  }

  optest::Problem dense(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k) const {
    return fitted(optest::dense_problem(batch, seqlen_q, seqlen_k, nheads_q, nheads_k, 1), GetParam());
  }
  optest::Problem packed(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k, int64_t nheads_q,
                         int64_t nheads_k) const {
    return fitted(optest::packed_problem(lengths_q, lengths_k, nheads_q, nheads_k, 1), GetParam());
  }
};

// Second line of a test of the mode.
#define TANDEM_NEEDS_DETERMINISTIC() \
  if (!GetParam().deterministic) GTEST_SKIP() << ::tandem::gpu_test::backward_refusal(GetParam(), true)

}  // namespace tandem::gpu_test
