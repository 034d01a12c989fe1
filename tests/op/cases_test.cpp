// Cases from the field, by number: empty rows, garbage in unused storage, sizes, strides. The expected values are
// the mathematically right ones.

#include <algorithm>
#include <chrono>

#include "backend_test.h"

namespace tandem::optest {
namespace {

class Cases : public BackendTest {};

TEST_P(Cases, C01_CausalWithMoreQueriesThanKeys) {
  Problem problem = dense_problem(1, 5, 2, 1, 1, 64, TANDEM_FP16);
  problem.causal = true;
  const Inputs inputs = random_inputs(problem, 1);
  const Results results = both(problem, inputs);
  double score = 0;
  for (size_t c = 0; c < 64; ++c) {
    for (size_t i = 0; i < 3; ++i) ASSERT_EQ(results.out[i * 64 + c], 0);
    for (size_t i = 0; i < 3; ++i) ASSERT_EQ(results.dq[i * 64 + c], 0);
    ASSERT_EQ(results.out[3 * 64 + c], inputs.v[c]);
    score += inputs.q[3 * 64 + c] * inputs.k[c] / 8;
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results.lse[i], -kInfinity);
  EXPECT_NEAR(results.lse[3], score, 1e-5 * std::max(1.0, std::fabs(score)));
  expect_correct(problem, 1);
}

TEST_P(Cases, C02_CausalBottomRightAndTopLeft) {
  Problem problem = dense_problem(1, 2, 5, 1, 1, 16);
  problem.causal = true;
  problem.softmax_scale = 0;
  const Inputs inputs = random_inputs(problem, 2, Poison::kNone);
  const Results bottom_right = forward(problem, inputs);
  EXPECT_NEAR(bottom_right.lse[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(bottom_right.lse[1], std::log(5.0), 1e-6);
  problem.top_left = true;
  const Results top_left = forward(problem, inputs);
  EXPECT_EQ(top_left.lse[0], 0);
  for (size_t c = 0; c < 16; ++c) EXPECT_EQ(top_left.out[c], inputs.v[c]);
  EXPECT_NEAR(top_left.lse[1], std::log(2.0), 1e-6);
}

TEST_P(Cases, C03_OneKeyPerSequence) {
  Problem problem = packed_problem({76, 34, 146}, {1, 1, 1}, 1, 1, 32, TANDEM_FP16);
  problem.causal = true;
  Inputs inputs = random_inputs(problem, 3);
  for (std::vector<double>* values : {&inputs.q, &inputs.k, &inputs.v}) {
    for (double& value : *values) value *= 3;
  }
  inputs.dout.assign(inputs.dout.size(), 1);
  const Results results = both(problem, inputs);
  expect_near(results.dq, std::vector<double>(results.dq.size(), 0), 1e-5);
  expect_near(results.dk, std::vector<double>(results.dk.size(), 0), 1e-5);
  expect_all(results.dv, 1);
}

TEST_P(Cases, C04_OneQueryOneKey) {
  Problem problem = dense_problem(1, 1, 1, 1, 1, 16, TANDEM_FP16);
  Inputs inputs = random_inputs(problem, 4);
  for (double& value : inputs.q) value *= 2;
  for (double& value : inputs.k) value *= 2;
  inputs.dout.assign(16, 1);
  const Results results = both(problem, inputs);
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_EQ(results.out[c], inputs.v[c]);
    EXPECT_EQ(results.dv[c], 1);
    EXPECT_NEAR(results.dq[c], 0, 1e-5);
    EXPECT_NEAR(results.dk[c], 0, 1e-5);
  }
}

TEST_P(Cases, C05_EmptySequencesBeforeALongOne) {
  const bool reference = backend() == TANDEM_BACKEND_REFERENCE;  // one head: its time is that of plain loops
  const int64_t heads = reference ? 1 : 32;
  Problem problem = packed_problem({0, 0, 1023}, {0, 1, 2045}, heads, heads, reference ? 16 : 64, TANDEM_BF16);
  const Inputs inputs = random_inputs(problem, 5);
  const auto start = std::chrono::steady_clock::now();
  const Results results = both(problem, inputs);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 60);  // a hang
  const size_t width = static_cast<size_t>(heads * problem.headdim);
  for (size_t c = 0; c < width; ++c) {
    ASSERT_EQ(results.dk[c], 0);
    ASSERT_EQ(results.dv[c], 0);
  }
  Problem one_head = packed_problem({1023}, {2045}, 1, 1, problem.headdim, TANDEM_BF16);
  const auto last_head = [&](const std::vector<double>& values, int64_t first_row, int64_t rows) {
    std::vector<double> column;
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      const auto begin = values.begin() + (row * heads + heads - 1) * problem.headdim;
      column.insert(column.end(), begin, begin + problem.headdim);
    }
    return column;
  };
  Inputs one = random_inputs(one_head, 5);
  one.q = last_head(inputs.q, 0, 1023);
  one.k = last_head(inputs.k, 1, 2045);
  one.v = last_head(inputs.v, 1, 2045);
  Results got;
  got.out = last_head(results.out, 0, 1023);
  got.lse.assign(results.lse.end() - 1023, results.lse.end());
  EXPECT_EQ(compare_with_oracle(one_head, one, got, oracle_for(backend(), one_head, one, false)), "");
}

TEST_P(Cases, C07_NoQueriesAtAll) {
  const Problem problem = packed_problem({0}, {4096}, 2, 1, 64);
  const Results results = both(problem, random_inputs(problem, 7));
  EXPECT_TRUE(results.out.empty());
  EXPECT_EQ(results.dk.size(), size_t{4096 * 64});
  expect_all(results.dk, 0);
  expect_all(results.dv, 0);
}

TEST_P(Cases, C08_MostlyEmptySequences) {
  Problem problem = packed_problem({0, 1, 0, 1}, {0, 3, 0, 5}, 9, 3, 64);
  problem.causal = true;
  problem.softmax_scale = 1;
  expect_correct(problem, 8);
}

TEST_P(Cases, C09_BatchZero) {
  const Problem problem = dense_problem(0, 3952, 16, 10, 10, 64);
  const Results results = both(problem, random_inputs(problem, 9));
  EXPECT_TRUE(results.out.empty() && results.lse.empty() && results.dk.empty());
  expect_correct(dense_problem(2, 0, 16, 4, 2, 64), 9);
  expect_correct(packed_problem({}, {}, 4, 2, 64), 9);
}

TEST_P(Cases, C10_NoKeys) {
  for (bool causal : {false, true}) {
    Problem problem = dense_problem(2, 7, 0, 2, 1, 16);
    problem.causal = causal;
    const Results results = both(problem, random_inputs(problem, 10));
    expect_all(results.out, 0);
    expect_all(results.lse, -kInfinity);
    expect_all(results.dq, 0);
    EXPECT_TRUE(results.dk.empty() && results.dv.empty());
  }
}

TEST_P(Cases, C12_OneQueryEachSomeWithoutKeys) {
  std::vector<int32_t> lengths_k;
  for (int32_t b = 0; b < 64; ++b) lengths_k.push_back(70);
  Problem problem = packed_problem(std::vector<int32_t>(64, 1), lengths_k, 8, 2, 32);
  for (int32_t b = 0; b < 64; ++b) problem.seqused_k.push_back(b == 1 || b == 10 ? 0 : 40 + b % 31);
  const Results results = forward(problem, random_inputs(problem, 12));
  for (int64_t h = 0; h < 8; ++h) {
    for (int64_t b = 0; b < 64; ++b) {
      const double lse = results.lse[static_cast<size_t>(problem.lse_index(b, h, 0))];
      EXPECT_EQ(lse == -kInfinity, b == 1 || b == 10) << b;
    }
  }
  expect_correct(problem, 12);
}

TEST_P(Cases, C15_GarbagePastTheUsedKeys) {
  for (double garbage : {kNan, kInfinity}) {
    for (bool only_v : {false, true}) {
      Problem problem = dense_problem(2, 1, 3, 1, 1, 64, TANDEM_FP16);
      problem.seqused_k = {1, 3};
      Inputs inputs = constant_inputs(problem, 0.5, 0.5, 0.5, 1);
      for (size_t n = 64; n < 3 * 64; ++n) inputs.v[n] = garbage;
      for (size_t n = 64; n < 3 * 64 && !only_v; ++n) inputs.k[n] = garbage;
      const Results results = both(problem, inputs);
      expect_all(results.out, 0.5);
      EXPECT_NEAR(results.lse[0], 2, 1e-5);  // 64 * 0.25 / 8
      EXPECT_NEAR(results.lse[1], 2 + std::log(3.0), 1e-5);
      for (size_t n = 64; n < 3 * 64; ++n) ASSERT_EQ(results.dk[n] + results.dv[n], 0);
    }
  }
}

TEST_P(Cases, C16_TheBitsOfARowWhateverTheTailHolds) {
  Problem problem = dense_problem(4, 1, 128, 8, 2, 64, TANDEM_BF16);
  problem.seqused_k = {32, 64, 96, 48};
  const Inputs zero_tails = [&] {
    Inputs inputs = random_inputs(problem, 16, Poison::kNan);
    for (std::vector<double>* values : {&inputs.k, &inputs.v}) {
      for (double& value : *values) value = std::isnan(value) ? 0 : value;
    }
    return inputs;
  }();
  const Results expected = both(problem, zero_tails);
  expect_same_bits(expected, both(problem, random_inputs(problem, 16, Poison::kNan)));
  expect_same_bits(expected, both(problem, random_inputs(problem, 16, Poison::kInfinity)));
}

TEST_P(Cases, C19_RowsPastTheLastOffset) {
  Problem problem = packed_problem({21}, {21}, 2, 2, 16);
  problem.total_q = problem.total_k = 24;
  const Results results = both(problem, random_inputs(problem, 19));
  for (size_t n = 21 * 32; n < 24 * 32; ++n) {
    ASSERT_EQ(results.out[n], 0);
    ASSERT_EQ(results.dq[n], 0);
    ASSERT_EQ(results.dk[n], 0);
    ASSERT_EQ(results.dv[n], 0);
  }
  expect_correct(problem, 19);
}

TEST_P(Cases, C20_GapsBetweenSequences) {
  Problem gaps = packed_problem({3, 4, 2}, {3, 4, 2}, 2, 1, 16);
  gaps.seqused_q = gaps.seqused_k = {2, 3, 1};
  gaps.causal = true;
  const Inputs inputs = random_inputs(gaps, 20, Poison::kNone);
  const Problem tight = [&] {
    Problem problem = packed_problem({2, 3, 1}, {2, 3, 1}, 2, 1, 16);
    problem.causal = true;
    return problem;
  }();
  const auto without_gaps = [](const std::vector<double>& values, size_t width) {
    std::vector<double> rows;
    for (size_t row : {0, 1, 3, 4, 5, 7}) {
      rows.insert(rows.end(), values.begin() + static_cast<int64_t>(row * width),
                  values.begin() + static_cast<int64_t>((row + 1) * width));
    }
    return rows;
  };
  Inputs tight_inputs;
  tight_inputs.q = without_gaps(inputs.q, 32);
  tight_inputs.k = without_gaps(inputs.k, 16);
  tight_inputs.v = without_gaps(inputs.v, 16);
  tight_inputs.dout = without_gaps(inputs.dout, 32);
  tight_inputs.dlse.assign(12, 0);
  const Results expected = both(tight, tight_inputs);
  const Results results = both(gaps, inputs);
  EXPECT_TRUE(same_bits(without_gaps(results.out, 32), expected.out));
  EXPECT_TRUE(same_bits(without_gaps(results.dq, 32), expected.dq));
  EXPECT_TRUE(same_bits(without_gaps(results.dk, 16), expected.dk));
  EXPECT_TRUE(same_bits(without_gaps(results.dv, 16), expected.dv));
  for (size_t row : {2, 6, 8}) {
    for (size_t n = row * 32; n < row * 32 + 32; ++n) ASSERT_EQ(results.out[n] + results.dq[n], 0);
    for (size_t n = row * 16; n < row * 16 + 16; ++n) ASSERT_EQ(results.dk[n] + results.dv[n], 0);
  }
}

TEST_P(Cases, C22_PaddedSlotsAreWritten) {
  Problem problem = dense_problem(1024, 1, 16, 2, 1, 16);
  problem.seqused_k.assign(1024, 0);
  problem.seqused_k[5] = 9;
  const Results results = forward(problem, random_inputs(problem, 22));  // into outputs that hold NaN
  for (size_t slot = 0; slot < 1024; ++slot) {
    if (slot == 5) continue;
    for (size_t n = slot * 32; n < slot * 32 + 32; ++n) ASSERT_EQ(results.out[n], 0) << slot;
    for (size_t h : {0, 1}) ASSERT_EQ(results.lse[slot * 2 + h], -kInfinity) << slot;
  }
  expect_correct(problem, 22);
}

TEST_P(Cases, C43_EightyThousandSequences) {
  constexpr int32_t kSequences = 80000;
  Problem problem = packed_problem(std::vector<int32_t>(kSequences, 16), std::vector<int32_t>(kSequences, 16), 1, 1, 2);
  const Inputs inputs = random_inputs(problem, 43, Poison::kNone);
  const Results results = both(problem, inputs);
  Problem alone = packed_problem({16}, {16}, 1, 1, 2);
  const auto tail = [](const std::vector<double>& values) {
    return std::vector<double>(values.end() - 32, values.end());
  };
  Inputs last;
  last.q = tail(inputs.q);
  last.k = tail(inputs.k);
  last.v = tail(inputs.v);
  last.dout = tail(inputs.dout);
  last.dlse.assign(16, 0);
  Results got;
  got.out = tail(results.out);
  got.dq = tail(results.dq);
  got.dk = tail(results.dk);
  got.dv = tail(results.dv);
  got.lse.assign(results.lse.end() - 16, results.lse.end());
  EXPECT_EQ(compare_with_oracle(alone, last, got, oracle_for(backend(), alone, last, true)), "");
}

TEST_P(Cases, C43_SeventyThousandSequencesOfOneToken) {
  expect_correct(dense_problem(70000, 1, 1, 1, 1, 3, TANDEM_BF16), 43);
}

TEST_P(Cases, C46_TransposedGradientOfTheOutput) {
  Problem problem = dense_problem(2, 32, 32, 4, 1, 128);
  const Inputs inputs = random_inputs(problem, 46);
  const Results contiguous = both(problem, inputs);
  problem.dout_layout.order = {0, 2, 1, 3};
  expect_same_bits(contiguous, both(problem, inputs));
}

TEST_P(Cases, C48_InterleavedQkv) {
  for (int64_t headdim : {64, 128}) {
    Problem problem = dense_problem(2, 20, 20, 3, 3, headdim, TANDEM_BF16);
    const Inputs inputs = random_inputs(problem, 48);
    const Results contiguous = both(problem, inputs);
    problem.q_layout.slices = problem.k_layout.slices = problem.v_layout.slices = 3;
    problem.k_layout.slice = 1;
    problem.v_layout.slice = 2;
    problem.gradient_layout.slices = 3;
    expect_same_bits(contiguous, both(problem, inputs));
  }
}

TEST_P(Cases, C49_StridesOfAxesOfSizeOne) {
  Problem problem = dense_problem(2, 10, 12, 4, 1, 16);
  const Inputs inputs = random_inputs(problem, 49);
  const Results contiguous = both(problem, inputs);
  problem.k_layout.huge_strides_on_ones = problem.v_layout.huge_strides_on_ones = true;
  problem.gradient_layout.huge_strides_on_ones = true;
  expect_same_bits(contiguous, both(problem, inputs));
  problem.k_layout = problem.v_layout = {};
  problem.k_layout.broadcast = problem.v_layout.broadcast = {2};  // stride 0
  expect_same_bits(contiguous, both(problem, inputs));
}

TEST_P(Cases, C50_MisalignedBasesAndRows) {
  for (int32_t dtype : {TANDEM_BF16, TANDEM_FP32}) {
    Problem problem = dense_problem(2, 10, 12, 2, 2, 64, dtype);
    const Inputs inputs = random_inputs(problem, 50);
    const Results contiguous = both(problem, inputs);
    for (Layout* layout : {&problem.q_layout, &problem.k_layout, &problem.v_layout, &problem.out_layout,
                           &problem.dout_layout, &problem.gradient_layout}) {
      layout->offset = 1;
      layout->padding = 1;
    }
    expect_same_bits(contiguous, both(problem, inputs));
  }
}

TANDEM_ON_EACH_CPU_BACKEND(Cases);

}  // namespace
}  // namespace tandem::optest
