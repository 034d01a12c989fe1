// The contract, paragraphs 1 to 9: what is computed. Expected values come from the paragraphs, worked out by hand.

#include "backend_test.h"

namespace tandem::optest {
namespace {

class Contract : public BackendTest {
 protected:
  // Which keys each row of head 0 sees, such as "110", found out with scale 0, where O is the mean of the visible rows
  // of V, and V the identity. All visible keys must have equal weight.
  std::vector<std::string> seen_keys(Problem problem) const {
    const int64_t keys = problem.packed ? problem.total_k : problem.seqlen_k;
    problem.softmax_scale = 0;
    problem.headdim_v = std::max(problem.headdim_v, keys);
    Inputs inputs = random_inputs(problem, 1);
    const int64_t columns = problem.headdim_v;
    for (int64_t row = 0; row < problem.rows_k(); ++row) {
      for (int64_t c = 0; c < columns; ++c) inputs.v[static_cast<size_t>(row * columns + c)] = row % keys == c ? 1 : 0;
    }
    for (double& k : inputs.k) k = 1;
    const Results results = forward(problem, inputs);
    std::vector<std::string> rows;
    for (int64_t i = 0; i < problem.rows_q(); ++i) {
      std::string row;
      const double* out = &results.out[static_cast<size_t>(i * problem.nheads_q * columns)];
      for (int64_t c = 0; c < keys; ++c) row += out[c] > 0 ? '1' : '0';
      rows.push_back(row);
    }
    return rows;
  }

  Problem small(int64_t seqlen_q, int64_t seqlen_k) const { return dense(1, seqlen_q, seqlen_k, 1, 1, 4); }
};

using Rows = std::vector<std::string>;

TEST_P(Contract, Contract01_ValueOfTwoKeys) {
  Problem problem = small(1, 2);
  problem.softmax_scale = 1;
  const double score = round_to(problem.dtype, std::log(3.0));  // O is 3 and LSE ln 4, but for this rounding
  Inputs inputs = constant_inputs(problem, 0, 0, 0, 1);
  inputs.q = in_first_column({1}, problem.headdim);
  inputs.k = in_first_column({0, score}, problem.headdim);
  inputs.v = in_first_column({0, 4}, problem.headdim_v);
  const Results results = both(problem, inputs);
  EXPECT_NEAR(results.out[0], 4 * std::exp(score) / (1 + std::exp(score)), tolerance(3));
  EXPECT_NEAR(results.lse[0], std::log(1 + std::exp(score)), lse_tolerance(1));
}

TEST_P(Contract, Contract01_SinkJoinsTheDenominator) {
  Problem problem = small(1, 2);
  problem.sink = {0};
  Inputs inputs = constant_inputs(problem, 0, 0, 0, 1);
  inputs.v = in_first_column({3, 6}, problem.headdim_v);
  const Results results = both(problem, inputs);
  EXPECT_NEAR(results.out[0], 3, tolerance(3));  // 9 / 3
  EXPECT_NEAR(results.lse[0], std::log(3.0), lse_tolerance(1));
}

TEST_P(Contract, Contract01_SoftcapComesAfterTheScale) {
  Problem problem = small(1, 1);
  problem.softmax_scale = 2;
  problem.softcap = 30;
  Inputs inputs = constant_inputs(problem, 5, 1, 1, 0);
  inputs.k = in_first_column({1}, problem.headdim);
  const Results results = forward(problem, inputs);
  EXPECT_NEAR(results.lse[0], 30 * std::tanh(10.0 / 30), 1e-5);
}

TEST_P(Contract, Contract02_DefaultScaleIsOfTheCallersHeaddim) {
  for (int64_t headdim : headdims({1, 3, 16, 59, 65, 200, 256})) {
    Problem problem = dense(1, 1, 1, 1, 1, headdim);
    const Results results = forward(problem, constant_inputs(problem, 1, 1, 1, 0));
    EXPECT_NEAR(results.lse[0], std::sqrt(static_cast<double>(headdim)), 1e-5 * headdim) << headdim;
  }
}

TEST_P(Contract, Contract02_ZeroAndNegativeScales) {
  Problem problem = small(2, 7);
  problem.softmax_scale = 0;
  Inputs inputs = random_inputs(problem, 3);
  const Results uniform = forward(problem, inputs);
  for (double lse : uniform.lse) EXPECT_NEAR(lse, std::log(7.0), lse_tolerance(std::log(7.0)));
  expect_correct(problem, 3);

  problem.softmax_scale = -0.5;
  expect_correct(problem, 4);
  Inputs negated = inputs;
  for (double& q : negated.q) q = -q;
  const Results negative = forward(problem, inputs);
  problem.softmax_scale = 0.5;
  expect_near(negative.out, forward(problem, negated).out, tolerance(4));
}

TEST_P(Contract, Contract03_CausalIsBottomRight) {
  Problem problem = small(3, 5);
  problem.causal = true;
  EXPECT_EQ(seen_keys(problem), (Rows{"11100", "11110", "11111"}));
  problem.top_left = true;
  EXPECT_EQ(seen_keys(problem), (Rows{"10000", "11000", "11100"}));
  problem = small(5, 2);
  problem.causal = true;
  EXPECT_EQ(seen_keys(problem), (Rows{"00", "00", "00", "10", "11"}));
}

TEST_P(Contract, Contract03_UsedLengthsCount) {
  Problem problem = small(3, 5);
  problem.causal = true;
  problem.seqused_q = {2};
  problem.seqused_k = {4};
  EXPECT_EQ(seen_keys(problem), (Rows{"11100", "11110", "00000"}));
}

TEST_P(Contract, Contract03_Windows) {
  Problem problem = small(5, 5);
  problem.has_window = true;
  problem.window_left = 1;
  problem.window_right = 2;
  EXPECT_EQ(seen_keys(problem), (Rows{"11100", "11110", "01111", "00111", "00011"}));
  problem.window_right = -1;
  EXPECT_EQ(seen_keys(problem), (Rows{"11111", "11111", "01111", "00111", "00011"}));
  problem.window_left = 0;
  problem.window_right = 0;
  EXPECT_EQ(seen_keys(problem), (Rows{"10000", "01000", "00100", "00010", "00001"}));
}

TEST_P(Contract, Contract03_ChunksFloorNegativePositions) {
  Problem problem = small(4, 4);
  problem.attention_chunk = 3;
  EXPECT_EQ(seen_keys(problem), (Rows{"1110", "1110", "1110", "0001"}));
  problem.causal = true;
  EXPECT_EQ(seen_keys(problem), (Rows{"1000", "1100", "1110", "0001"}));
  problem = small(5, 3);  // rows 0 and 1 stand at positions -2 and -1, in chunk number -1, which holds no key
  problem.attention_chunk = 2;
  EXPECT_EQ(seen_keys(problem), (Rows{"000", "000", "110", "110", "001"}));
  problem.top_left = true;
  EXPECT_EQ(seen_keys(problem), (Rows{"110", "110", "001", "001", "000"}));
}

TEST_P(Contract, Contract04_IntervalsIntersectCausal) {
  Problem problem = small(3, 5);
  problem.lo = Intervals{true, true, {1, 0, 4}};
  problem.hi = Intervals{true, true, {3, INT32_MAX, 2}};
  EXPECT_EQ(seen_keys(problem), (Rows{"01100", "11111", "00000"}));
  problem.causal = true;
  EXPECT_EQ(seen_keys(problem), (Rows{"01100", "11110", "00000"}));
  problem.lo = Intervals{true, true, {INT32_MIN, -7, 2}};
  problem.hi.reset();
  EXPECT_EQ(seen_keys(problem), (Rows{"11100", "11110", "00111"}));
}

TEST_P(Contract, Contract04_IntervalsBroadcast) {
  Problem problem = dense(2, 3, 6, 4, 2, 8);
  for (bool per_batch : {false, true}) {
    for (bool per_head : {false, true}) {
      Intervals lo{per_batch, per_head, {}};
      const int64_t count = (per_batch ? 2 : 1) * (per_head ? 4 : 1) * 3;
      for (int64_t n = 0; n < count; ++n) lo.values.push_back(static_cast<int32_t>(n * 5 % 7));
      problem.lo = lo;
      expect_correct(problem, 5);
    }
  }
}

TEST_P(Contract, Contract04_PackedIntervalsCountWithinTheSequence) {
  Problem problem = packed({2, 1}, {3, 2}, 1, 1, 4);
  problem.lo = Intervals{true, false, {1, 0, 0}};
  problem.hi = Intervals{true, false, {3, 1, 1}};
  EXPECT_EQ(seen_keys(problem), (Rows{"01100", "10000", "00010"}));
}

TEST_P(Contract, Contract05_EmptyRowsAreExact) {
  Problem problem = dense(1, 5, 2, 2, 1, 64, TANDEM_FP16);
  problem.causal = true;
  const int64_t q_width = 2 * problem.headdim, out_width = 2 * problem.headdim_v;
  Inputs inputs = random_inputs(problem, 6);
  std::fill_n(inputs.q.begin(), 3 * q_width, kNan);  // rows 0 to 2 see nothing
  std::fill_n(inputs.dout.begin(), 3 * out_width, kNan);
  const Results results = both(problem, inputs);
  expect_all(rows_of(results.out, 0, 3, out_width), 0);
  expect_all(rows_of(results.dq, 0, 3, q_width), 0);
  for (int64_t h : {0, 1}) {
    for (int64_t i : {0, 1, 2}) ASSERT_EQ(results.lse[static_cast<size_t>(h * 5 + i)], -kInfinity);
  }
  Problem only_last = dense(1, 2, 2, 2, 1, 64, TANDEM_FP16);
  only_last.causal = true;
  Inputs tail = inputs;
  tail.q = rows_of(inputs.q, 3, 2, q_width);
  tail.dout = rows_of(inputs.dout, 3, 2, out_width);
  EXPECT_EQ(fault(only_last, tail), "");
  const Results alone = both(only_last, tail);
  expect_near(results.dk, alone.dk, 1e-2);  // no NaN, and the same up to rounding
  expect_near(results.dv, alone.dv, 1e-2);
}

TEST_P(Contract, Contract05_EmptyRowsWithSinkHaveItsLse) {
  Problem problem = small(3, 1);
  problem.causal = true;
  problem.sink = {1.25};
  problem.with_dlse = true;
  Inputs inputs = random_inputs(problem, 7);
  inputs.dlse = {2, 4, 0};
  std::fill_n(inputs.dout.begin() + 2 * problem.headdim_v, problem.headdim_v, 0);
  const Results results = both(problem, inputs);
  EXPECT_EQ(results.lse[0], 1.25);
  EXPECT_EQ(results.lse[1], 1.25);
  expect_all(rows_of(results.out, 0, 2, problem.headdim_v), 0);
  expect_all(rows_of(results.dq, 0, 2, problem.headdim), 0);
  // d lse / d sink = 1 in both empty rows; row 2 has no gradient
  if (gradients()) {
    EXPECT_NEAR(results.dsink[0], 6, 1e-5);
  }
}

// The definition's denominator is 0 there, as for a row that sees no key.
TEST_P(Contract, Contract05_RowsWhoseScoresAreAllMinusInfinityAreEmpty) {
  TANDEM_SKIP_IN_E4M3();
  Problem problem = dense(1, 2, 3, 1, 1, 1);
  Inputs inputs = constant_inputs(problem, 1, -kInfinity, 3, 1);
  const Results results = both(problem, inputs);
  for (const std::vector<double>* zeros : {&results.out, &results.dq, &results.dk, &results.dv}) expect_all(*zeros, 0);
  expect_all(results.lse, -kInfinity);
  problem.sink = {1.25};
  const Results with_sink = forward(problem, inputs);
  expect_all(with_sink.out, 0);
  expect_all(with_sink.lse, 1.25);
  problem.sink.clear();
  std::fill_n(inputs.k.begin() + problem.headdim, problem.headdim, 0);
  const Results one_key = forward(problem, inputs);
  expect_all(one_key.out, 3);
  expect_all(one_key.lse, 0);
  inputs.k[static_cast<size_t>(problem.headdim)] = kNan;
  for (double lse : forward(problem, inputs).lse) EXPECT_TRUE(std::isnan(lse));
}

TEST_P(Contract, Contract05_NothingToDoIsLegal) {
  for (bool causal : {false, true}) {
    for (Problem problem : {dense(0, 3, 3, 2, 1, 8), dense(2, 0, 3, 2, 1, 8), dense(2, 3, 0, 2, 1, 8),
                            dense(2, 0, 0, 2, 1, 8), packed({}, {}, 2, 1, 8), packed({0, 0}, {3, 0}, 2, 1, 8),
                            packed({3, 2}, {0, 0}, 2, 1, 8), dense(2, 3, 4, 0, 1, 8), packed({3}, {4}, 0, 2, 8)}) {
      problem.causal = causal;
      expect_correct(problem, 8);
      const Results results = both(problem, random_inputs(problem, 8));
      expect_all(results.out, 0);
      expect_all(results.lse, -kInfinity);
      expect_all(results.dq, 0);
      expect_all(results.dk, 0);
      expect_all(results.dv, 0);
    }
  }
}

TEST_P(Contract, Contract06_LseIsTheNaturalLogOfTheDenominator) {
  Problem problem = small(1, 5);
  EXPECT_NEAR(forward(problem, constant_inputs(problem, 0, 1, 1, 0)).lse[0], std::log(5.0), lse_tolerance(2));
  problem.sink = {std::log(2.0f)};
  EXPECT_NEAR(forward(problem, constant_inputs(problem, 0, 1, 1, 0)).lse[0], std::log(7.0), lse_tolerance(2));
}

TEST_P(Contract, Contract06_LseStridesAreFree) {
  Problem problem = dense(2, 3, 4, 2, 1, 8);
  const Inputs inputs = random_inputs(problem, 9);
  const Results plain = repeatable(problem, inputs);
  problem.lse_layout.order = {2, 0, 1};
  problem.lse_layout.padding = 3;
  expect_same_bits(plain, repeatable(problem, inputs));
}

TEST_P(Contract, Contract06_RowsOutsideHaveLseMinusInfinity) {
  Problem problem = packed({2, 1}, {2, 2}, 1, 1, 8);
  problem.total_q = 5;
  problem.sink = {3};
  const Results results = forward(problem, random_inputs(problem, 10));
  EXPECT_EQ(results.lse[3], -kInfinity);
  EXPECT_EQ(results.lse[4], -kInfinity);
}

TEST_P(Contract, Contract06_GradientOfAnInfiniteLseIsIgnored) {
  Problem problem = small(4, 2);
  problem.causal = true;
  problem.with_dlse = true;
  Inputs inputs = random_inputs(problem, 11);
  const Results expected = repeatable(problem, inputs);
  inputs.dlse[0] = kNan;
  inputs.dlse[1] = kInfinity;  // rows 0 and 1 see nothing
  expect_same_bits(expected, repeatable(problem, inputs));
}

TEST_P(Contract, Contract07_UnusedStorageNeverCounts) {
  for (int32_t dtype : dtypes({TANDEM_FP32, TANDEM_BF16, TANDEM_FP16, TANDEM_FP64})) {
    Problem problem = dense(3, 70, 90, 2, 1, 24, dtype);
    problem.seqused_q = {13, 70, 0};
    problem.seqused_k = {33, 1, 90};
    problem.causal = true;
    const Results clean = repeatable(problem, random_inputs(problem, 12, Poison::kNone));
    expect_same_bits(clean, repeatable(problem, random_inputs(problem, 12, Poison::kNan)));
    expect_same_bits(clean, repeatable(problem, random_inputs(problem, 12, Poison::kInfinity)));
    EXPECT_EQ(fault(problem, random_inputs(problem, 12)), "");
  }
}

TEST_P(Contract, Contract07_NanInAKeyReachesTheRowsThatSeeItAndNoOthers) {
  Problem problem = small(40, 40);
  problem.causal = true;
  Inputs inputs = random_inputs(problem, 13);
  const Results clean = forward(problem, inputs);
  inputs.k[static_cast<size_t>(20 * problem.headdim)] = kNan;
  const Results results = forward(problem, inputs);
  const size_t columns = static_cast<size_t>(problem.headdim_v);
  for (size_t i = 0; i < 40; ++i) {
    if (i < 20) {
      ASSERT_EQ(results.lse[i], clean.lse[i]) << i;
    } else {
      ASSERT_TRUE(std::isnan(results.lse[i])) << i << ": " << results.lse[i];
    }
    for (size_t c = i * columns; c < (i + 1) * columns; ++c) {
      if (i < 20) {
        ASSERT_EQ(results.out[c], clean.out[c]) << i;
      } else {
        ASSERT_TRUE(std::isnan(results.out[c])) << i;
      }
    }
  }
}

TEST_P(Contract, Contract07_NeighbourSequencesNeverCount) {
  Problem problem = packed({5, 9, 3}, {7, 11, 2}, 2, 2, 16);
  const Inputs clean_inputs = random_inputs(problem, 14);
  const Results clean = repeatable(problem, clean_inputs);
  Inputs inputs = clean_inputs;
  const int64_t width = 2 * problem.headdim, width_v = 2 * problem.headdim_v;
  for (int64_t row = 0; row < 17; ++row) {
    if (row >= 5 && row < 14) continue;  // sequence 1 stays
    std::fill_n(inputs.q.begin() + row * width, width, kNan);
    std::fill_n(inputs.dout.begin() + row * width_v, width_v, kNan);
  }
  for (int64_t row = 0; row < 20; ++row) {
    if (row >= 7 && row < 18) continue;
    std::fill_n(inputs.k.begin() + row * width, width, kNan);
    std::fill_n(inputs.v.begin() + row * width_v, width_v, kNan);
  }
  const Results results = repeatable(problem, inputs);
  EXPECT_TRUE(same_bits(rows_of(results.out, 5, 9, width_v), rows_of(clean.out, 5, 9, width_v)));
  EXPECT_TRUE(same_bits(rows_of(results.dq, 5, 9, width), rows_of(clean.dq, 5, 9, width)));
  EXPECT_TRUE(same_bits(rows_of(results.dk, 7, 11, width), rows_of(clean.dk, 7, 11, width)));
  EXPECT_TRUE(same_bits(rows_of(results.dv, 7, 11, width_v), rows_of(clean.dv, 7, 11, width_v)));
}

TEST_P(Contract, Contract08_RowsOutsideAreZero) {
  Problem problem = packed({3, 4}, {3, 4}, 2, 1, 8);
  problem.total_q = 9;
  problem.total_k = 10;
  problem.seqused_q = {2, 4};
  problem.seqused_k = {3, 1};
  const Results results = both(problem, random_inputs(problem, 15));
  for (int64_t row : {2, 7, 8}) {
    expect_all(rows_of(results.out, row, 1, 2 * problem.headdim_v), 0);
    expect_all(rows_of(results.dq, row, 1, 2 * problem.headdim), 0);
  }
  for (int64_t row : {4, 5, 6, 7, 8, 9}) {
    expect_all(rows_of(results.dk, row, 1, problem.headdim), 0);
    expect_all(rows_of(results.dv, row, 1, problem.headdim_v), 0);
  }
}

TEST_P(Contract, Contract09_QueryHeadsShareTheirGroupsKeyHead) {
  Problem problem = dense(1, 6, 9, 6, 2, 8);
  const Inputs inputs = random_inputs(problem, 16);
  Problem wide = problem;
  wide.nheads_k = 6;
  Inputs wide_inputs = inputs;
  wide_inputs.k.clear();
  wide_inputs.v.clear();
  const auto append = [](std::vector<double>& rows, const std::vector<double>& row) {
    rows.insert(rows.end(), row.begin(), row.end());
  };
  for (int64_t j = 0; j < 9; ++j) {
    for (int64_t h = 0; h < 6; ++h) {
      append(wide_inputs.k, rows_of(inputs.k, j * 2 + h / 3, 1, problem.headdim));
      append(wide_inputs.v, rows_of(inputs.v, j * 2 + h / 3, 1, problem.headdim_v));
    }
  }
  expect_near(forward(problem, inputs).out, forward(wide, wide_inputs).out, tolerance(4));
  expect_correct(problem, 16);
}

TANDEM_ON_EACH_TARGET(Contract);

}  // namespace
}  // namespace tandem::optest
