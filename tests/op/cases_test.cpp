// Cases from the field, by number: empty rows, garbage in unused storage, sizes, strides. The expected values are
// the mathematically right ones.

#include <algorithm>
#include <chrono>

#include "backend_test.h"

namespace tandem::optest {
namespace {

class Cases : public BackendTest {
 protected:
  // P is 1, so that dS is the difference of two equal sums, dO V^T and delta; where dO is 1. dK sums over `rows`.
  static void expect_zero_scores_gradient(const Problem& problem, const Inputs& inputs, const Results& results,
                                          int64_t rows) {
    const auto largest = [](const std::vector<double>& values) {
      double found = 0;
      for (double value : values) found = std::max(found, std::fabs(value));
      return found;
    };
    const double terms = static_cast<double>(problem.headdim_v) * largest(inputs.v);
    const double ds = std::max(1e-6, cancelled(problem.headdim_v, terms)) * problem.scale();
    expect_near(results.dq, std::vector<double>(results.dq.size(), 0), ds * largest(inputs.k));
    expect_near(results.dk, std::vector<double>(results.dk.size(), 0), ds * largest(inputs.q) * rows);
  }
};

TEST_P(Cases, C01_CausalWithMoreQueriesThanKeys) {
  Problem problem = dense(1, 5, 2, 1, 1, 64, TANDEM_FP16);
  problem.causal = true;
  const Inputs inputs = random_inputs(problem, 1);
  const Results results = both(problem, inputs);
  expect_all(rows_of(results.out, 0, 3, problem.headdim_v), 0);
  expect_all(rows_of(results.dq, 0, 3, problem.headdim), 0);
  EXPECT_EQ(rows_of(results.out, 3, 1, problem.headdim_v), rows_of(inputs.v, 0, 1, problem.headdim_v));
  const double* q = &inputs.q[3 * static_cast<size_t>(problem.headdim)];
  const double score = problem.scale() * dot(problem.headdim, q, inputs.k.data());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results.lse[i], -kInfinity);
  EXPECT_NEAR(results.lse[3], score, 1e-5 * std::max(1.0, std::fabs(score)));
  expect_correct(problem, 1);
}

TEST_P(Cases, C02_CausalBottomRightAndTopLeft) {
  Problem problem = dense(1, 2, 5, 1, 1, 16);
  problem.causal = true;
  problem.softmax_scale = 0;
  const Inputs inputs = random_inputs(problem, 2, Poison::kNone);
  const Results bottom_right = forward(problem, inputs);
  EXPECT_NEAR(bottom_right.lse[0], std::log(4.0), lse_tolerance(1));
  EXPECT_NEAR(bottom_right.lse[1], std::log(5.0), lse_tolerance(1));
  problem.top_left = true;
  const Results top_left = forward(problem, inputs);
  EXPECT_EQ(top_left.lse[0], 0);
  EXPECT_EQ(rows_of(top_left.out, 0, 1, problem.headdim_v), rows_of(inputs.v, 0, 1, problem.headdim_v));
  EXPECT_NEAR(top_left.lse[1], std::log(2.0), lse_tolerance(1));
}

TEST_P(Cases, C03_OneKeyPerSequence) {
  Problem problem = packed({76, 34, 146}, {1, 1, 1}, 1, 1, 32, TANDEM_FP16);
  problem.causal = true;
  Inputs inputs = random_inputs(problem, 3);
  for (std::vector<double>* values : {&inputs.q, &inputs.k, &inputs.v}) {
    for (double& value : *values) value = round_to(problem.dtype, value * 3);
  }
  inputs.dout.assign(inputs.dout.size(), 1);
  const Results results = both(problem, inputs);
  expect_zero_scores_gradient(problem, inputs, results, 146);
  expect_all(results.dv, 1);
}

TEST_P(Cases, C04_OneQueryOneKey) {
  Problem problem = dense(1, 1, 1, 1, 1, 16, TANDEM_FP16);
  Inputs inputs = random_inputs(problem, 4);
  for (double& value : inputs.q) value *= 2;
  for (double& value : inputs.k) value *= 2;
  inputs.dout.assign(inputs.dout.size(), 1);
  const Results results = both(problem, inputs);
  EXPECT_EQ(results.out, inputs.v);
  expect_all(results.dv, 1);
  expect_zero_scores_gradient(problem, inputs, results, 1);
}

TEST_P(Cases, C05_EmptySequencesBeforeALongOne) {
  const bool reference = backend() == TANDEM_BACKEND_REFERENCE;  // one head: its time is that of plain loops
  const int64_t heads = reference ? 1 : target().fixed() ? 3 : 32;
  const Problem problem = packed({0, 0, 1023}, {0, 1, 2045}, heads, heads, reference ? 16 : 64, TANDEM_BF16);
  const Inputs inputs = random_inputs(problem, 5);
  const auto start = std::chrono::steady_clock::now();
  const Results results = both(problem, inputs);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 60);  // a hang
  expect_all(rows_of(results.dk, 0, 1, heads * problem.headdim), 0);
  expect_all(rows_of(results.dv, 0, 1, heads * problem.headdim_v), 0);
  const int32_t compared = target().fixed() ? 100 : 1023;
  const Problem one_head = packed({compared}, {2045}, 1, 1, problem.headdim, TANDEM_BF16);
  const auto last_head = [&](const std::vector<double>& values, int64_t first_row, int64_t rows, int64_t columns) {
    std::vector<double> column;
    for (int64_t row = first_row; row < first_row + rows; ++row) {
      const auto begin = values.begin() + (row * heads + heads - 1) * columns;
      column.insert(column.end(), begin, begin + columns);
    }
    return column;
  };
  Inputs one = random_inputs(one_head, 5);
  one.q = last_head(inputs.q, 0, compared, problem.headdim);
  one.k = last_head(inputs.k, 1, 2045, problem.headdim);
  one.v = last_head(inputs.v, 1, 2045, problem.headdim_v);
  Results got;
  got.out = last_head(results.out, 0, compared, problem.headdim_v);
  got.lse.assign(results.lse.end() - 1023, results.lse.end() - 1023 + compared);
  EXPECT_EQ(mismatch(one_head, one, got, false), "");
}

TEST_P(Cases, C07_NoQueriesAtAll) {
  const Problem problem = packed({0}, {4096}, 2, 1, 64);
  const Results results = both(problem, random_inputs(problem, 7));
  EXPECT_TRUE(results.out.empty());
  EXPECT_EQ(results.dk.size(), gradients() ? static_cast<size_t>(4096 * problem.headdim) : 0);
  expect_all(results.dk, 0);
  expect_all(results.dv, 0);
}

TEST_P(Cases, C08_MostlyEmptySequences) {
  Problem problem = packed({0, 1, 0, 1}, {0, 3, 0, 5}, 9, 3, 64);
  problem.causal = true;
  problem.softmax_scale = 1;
  expect_correct(problem, 8);
}

TEST_P(Cases, C09_BatchZero) {
  const Problem problem = dense(0, 3952, 16, 10, 10, 64);
  const Results results = both(problem, random_inputs(problem, 9));
  EXPECT_TRUE(results.out.empty() && results.lse.empty() && results.dk.empty());
  expect_correct(dense(2, 0, 16, 4, 2, 64), 9);
  expect_correct(packed({}, {}, 4, 2, 64), 9);
}

TEST_P(Cases, C10_NoKeys) {
  for (bool causal : {false, true}) {
    Problem problem = dense(2, 7, 0, 2, 1, 16);
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
  Problem problem = packed(std::vector<int32_t>(64, 1), lengths_k, 8, 2, 32);
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
      Problem problem = dense(2, 1, 3, 1, 1, 64, TANDEM_FP16);
      problem.seqused_k = {1, 3};
      Inputs inputs = constant_inputs(problem, 0.5, 0.5, 0.5, 1);
      std::fill_n(inputs.v.begin() + problem.headdim_v, 2 * problem.headdim_v, garbage);
      if (!only_v) std::fill_n(inputs.k.begin() + problem.headdim, 2 * problem.headdim, garbage);
      const Results results = both(problem, inputs);
      expect_all(results.out, 0.5);
      const double score = std::sqrt(static_cast<double>(problem.headdim)) / 4;
      EXPECT_NEAR(results.lse[0], score, lse_tolerance(score));
      EXPECT_NEAR(results.lse[1], score + std::log(3.0), lse_tolerance(score + std::log(3.0)));
      expect_all(rows_of(results.dk, 1, 2, problem.headdim), 0);
      expect_all(rows_of(results.dv, 1, 2, problem.headdim_v), 0);
    }
  }
}

TEST_P(Cases, C16_TheBitsOfARowWhateverTheTailHolds) {
  Problem problem = dense(4, 1, 128, 8, 2, 64, TANDEM_BF16);
  problem.seqused_k = {32, 64, 96, 48};
  const Inputs zero_tails = [&] {
    Inputs inputs = random_inputs(problem, 16, Poison::kNan);
    for (std::vector<double>* values : {&inputs.k, &inputs.v}) {
      for (double& value : *values) value = std::isnan(value) ? 0 : value;
    }
    return inputs;
  }();
  const Results expected = repeatable(problem, zero_tails);
  expect_same_bits(expected, repeatable(problem, random_inputs(problem, 16, Poison::kNan)));
  expect_same_bits(expected, repeatable(problem, random_inputs(problem, 16, Poison::kInfinity)));
}

TEST_P(Cases, C19_RowsPastTheLastOffset) {
  Problem problem = packed({21}, {21}, 2, 2, 16);
  problem.total_q = problem.total_k = 24;
  const Results results = both(problem, random_inputs(problem, 19));
  for (const std::vector<double>* values : {&results.out, &results.dv}) {
    expect_all(rows_of(*values, 21, 3, 2 * problem.headdim_v), 0);
  }
  for (const std::vector<double>* values : {&results.dq, &results.dk}) {
    expect_all(rows_of(*values, 21, 3, 2 * problem.headdim), 0);
  }
  expect_correct(problem, 19);
}

TEST_P(Cases, C20_GapsBetweenSequences) {
  Problem gaps = packed({3, 4, 2}, {3, 4, 2}, 2, 1, 16);
  gaps.seqused_q = gaps.seqused_k = {2, 3, 1};
  gaps.causal = true;
  const Inputs inputs = random_inputs(gaps, 20, Poison::kNone);
  const Problem tight = [&] {
    Problem problem = packed({2, 3, 1}, {2, 3, 1}, 2, 1, 16);
    problem.causal = true;
    return problem;
  }();
  const auto without_gaps = [](const std::vector<double>& values, int64_t width) {
    std::vector<double> rows;
    if (values.empty()) return rows;
    for (int64_t row : {0, 1, 3, 4, 5, 7}) {
      const std::vector<double> kept = rows_of(values, row, 1, width);
      rows.insert(rows.end(), kept.begin(), kept.end());
    }
    return rows;
  };
  const int64_t d = gaps.headdim, d_v = gaps.headdim_v;
  Inputs tight_inputs;
  tight_inputs.q = without_gaps(inputs.q, 2 * d);
  tight_inputs.k = without_gaps(inputs.k, d);
  tight_inputs.v = without_gaps(inputs.v, d_v);
  tight_inputs.dout = without_gaps(inputs.dout, 2 * d_v);
  tight_inputs.dlse.assign(12, 0);
  const Results expected = repeatable(tight, tight_inputs);
  const Results results = repeatable(gaps, inputs);
  EXPECT_TRUE(same_bits(without_gaps(results.out, 2 * d_v), expected.out));
  EXPECT_TRUE(same_bits(without_gaps(results.dq, 2 * d), expected.dq));
  EXPECT_TRUE(same_bits(without_gaps(results.dk, d), expected.dk));
  EXPECT_TRUE(same_bits(without_gaps(results.dv, d_v), expected.dv));
  for (int64_t row : {2, 6, 8}) {
    expect_all(rows_of(results.out, row, 1, 2 * d_v), 0);
    expect_all(rows_of(results.dq, row, 1, 2 * d), 0);
    expect_all(rows_of(results.dk, row, 1, d), 0);
    expect_all(rows_of(results.dv, row, 1, d_v), 0);
  }
}

TEST_P(Cases, C22_PaddedSlotsAreWritten) {
  Problem problem = dense(1024, 1, 16, 2, 1, 16);
  problem.seqused_k.assign(1024, 0);
  problem.seqused_k[5] = 9;
  const Results results = forward(problem, random_inputs(problem, 22));  // into outputs that hold NaN
  for (size_t slot = 0; slot < 1024; ++slot) {
    if (slot == 5) continue;
    expect_all(rows_of(results.out, static_cast<int64_t>(slot), 1, 2 * problem.headdim_v), 0);
    for (size_t h : {0, 1}) ASSERT_EQ(results.lse[slot * 2 + h], -kInfinity) << slot;
  }
  expect_correct(problem, 22);
}

TEST_P(Cases, C43_EightyThousandSequences) {
  const size_t sequences = target().fixed() ? 800 : 80000;  // tests/gpu has 80000 of a target's head dims
  const Problem problem = packed(std::vector<int32_t>(sequences, 16), std::vector<int32_t>(sequences, 16), 1, 1, 2);
  const Inputs inputs = random_inputs(problem, 43, Poison::kNone);
  const Results results = both(problem, inputs);
  const Problem alone = packed({16}, {16}, 1, 1, 2);
  const auto tail = [&](const std::vector<double>& values, int64_t columns) {
    return rows_of(values, problem.total_q - 16, 16, columns);
  };
  Inputs last;
  last.q = tail(inputs.q, alone.headdim);
  last.k = tail(inputs.k, alone.headdim);
  last.v = tail(inputs.v, alone.headdim_v);
  last.dout = tail(inputs.dout, alone.headdim_v);
  last.dlse.assign(16, 0);
  Results got;
  got.out = tail(results.out, alone.headdim_v);
  got.lse = tail(results.lse, 1);
  got.dq = tail(results.dq, alone.headdim);
  got.dk = tail(results.dk, alone.headdim);
  got.dv = tail(results.dv, alone.headdim_v);
  EXPECT_EQ(mismatch(alone, last, got, gradients()), "");
}

TEST_P(Cases, C43_SeventyThousandSequencesOfOneToken) {
  expect_correct(dense(target().fixed() ? 700 : 70000, 1, 1, 1, 1, 3, TANDEM_BF16), 43);
}

TEST_P(Cases, C46_TransposedOutputAndItsGradient) {
  Problem problem = dense(2, 32, 32, 4, 1, 128);
  const Inputs inputs = random_inputs(problem, 46);
  const Results contiguous = repeatable(problem, inputs);
  problem.out_layout.order = problem.dout_layout.order = {0, 2, 1, 3};
  expect_same_bits(contiguous, repeatable(problem, inputs));
}

TEST_P(Cases, C48_InterleavedQkv) {
  for (int64_t headdim : headdims({64, 128})) {
    Problem problem = dense(2, 20, 20, 3, 3, headdim, TANDEM_BF16);
    const Inputs inputs = random_inputs(problem, 48);
    const Results contiguous = repeatable(problem, inputs);
    problem.q_layout.slices = problem.k_layout.slices = problem.v_layout.slices = 3;
    problem.k_layout.slice = 1;
    problem.v_layout.slice = 2;
    problem.gradient_layout.slices = 3;
    expect_same_bits(contiguous, repeatable(problem, inputs));
  }
}

TEST_P(Cases, C49_StridesOfAxesOfSizeOne) {
  Problem problem = dense(2, 10, 12, 4, 1, 16);
  const Inputs inputs = random_inputs(problem, 49);
  const Results contiguous = repeatable(problem, inputs);
  problem.k_layout.huge_strides_on_ones = problem.v_layout.huge_strides_on_ones = true;
  problem.gradient_layout.huge_strides_on_ones = true;
  expect_same_bits(contiguous, repeatable(problem, inputs));
  problem.k_layout = problem.v_layout = {};
  problem.k_layout.broadcast = {2};  // stride 0 on the axis of heads
  problem.v_layout.broadcast = {problem.v_transposed ? 1 : 2};
  expect_same_bits(contiguous, repeatable(problem, inputs));
}

TEST_P(Cases, C50_MisalignedBasesAndRows) {
  // The copy engine of a GPU takes addresses and strides of 16 bytes only: tests/gpu has what it refuses.
  const int64_t step = !target().fixed() ? 1 : target().dtype == TANDEM_E4M3 ? 16 : 8;
  for (int32_t dtype : dtypes({TANDEM_BF16, TANDEM_FP32})) {
    Problem problem = dense(2, 10, 12, 2, 2, 64, dtype);
    const Inputs inputs = random_inputs(problem, 50);
    const Results contiguous = repeatable(problem, inputs);
    for (Layout* layout : {&problem.q_layout, &problem.k_layout, &problem.v_layout, &problem.out_layout,
                           &problem.dout_layout, &problem.gradient_layout}) {
      layout->offset = step;
      layout->padding = step;
    }
    expect_same_bits(contiguous, repeatable(problem, inputs));
  }
}

TEST_P(Cases, C51_TransposedViews) {
  Problem problem = dense(1, 62, 62, 4, 4, 128, TANDEM_BF16);
  const Inputs inputs = random_inputs(problem, 51);
  const Results contiguous = repeatable(problem, inputs);
  problem.v_layout.order = {0, 2, 1, 3};
  expect_same_bits(contiguous, repeatable(problem, inputs));
  problem.q_layout.order = problem.k_layout.order = {0, 2, 1, 3};
  expect_same_bits(contiguous, repeatable(problem, inputs));
}

TANDEM_ON_EACH_TARGET(Cases);

}  // namespace
}  // namespace tandem::optest
