// What the forward in e4m3 has beside the edges of every type (forward_test.cpp): scales, V^T in slots, P within the
// range of e4m3, sums of many keys. And bugs planted in that.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>
#include <random>

#include "dense_attention.h"
#include "float_types.h"
#include "forward/launch.h"
#include "forward/problems.h"
#include "planted_bug.h"

namespace tandem::model {

void PrintTo(const InstanceId& instance, std::ostream* stream) {
  *stream << instance.name();
}

namespace {

using optest::Inputs;
using optest::Problem;
using optest::ScaleSet;

constexpr int kScaleRows = 128;

ScaleSet scale_of_all(double value) {
  return {1, 1, 1, 1, {value}};
}

// Of (batch, heads, blocks), between a half and one and a half; every third is negative.
ScaleSet random_scales(int64_t batch, int64_t heads, int64_t blocks, uint64_t seed) {
  std::mt19937_64 random(seed);
  ScaleSet scales{batch, heads, blocks, blocks > 1 ? 3 : 2, {}};
  for (int64_t n = 0; n < batch * heads * blocks; ++n) {
    const double value = 0.5 + static_cast<double>(random() >> 11) * 0x1p-53;
    scales.values.push_back(static_cast<float>(n % 3 == 2 ? -value : value));
  }
  return scales;
}

int64_t scale_blocks(int64_t rows) {
  return (rows + kScaleRows - 1) / kScaleRows;
}

ForwardRun run_case(const Problem& problem, const Inputs& inputs, uint64_t seed = 1) {
  return run_forward(problem, inputs, 1, options_for(seed));
}

void expect_right(const Problem& problem, const Inputs& inputs) {
  EXPECT_EQ(fault_of(problem, inputs, run_case(problem, inputs)), "") << describe(problem);
}
void expect_right(const Problem& problem) {
  expect_right(problem, optest::random_inputs(problem, 1));
}

double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0;
  double size = 0;
  for (size_t n = 0; n < got.size(); ++n) {
    error += (got[n] - expected[n]) * (got[n] - expected[n]);
    size += expected[n] * expected[n];
  }
  return std::sqrt(error / size);
}

void expect_same_bits(const ForwardRun& a, const ForwardRun& b) {
  ASSERT_FALSE(a.result.report) << a.result.text();
  ASSERT_FALSE(b.result.report) << b.result.text();
  EXPECT_TRUE(a.outputs.out == b.outputs.out && a.outputs.lse == b.outputs.lse);
}

class ForwardFp8 : public testing::TestWithParam<InstanceId> {
 protected:
  const InstanceId& id() const { return GetParam(); }
  int m() const { return id().block_m(); }
  int n() const { return id().block_n(); }
  Problem dense(int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1) const {
    return dense_problem(id(), seqlen_q, seqlen_k, nheads);
  }
};

INSTANTIATE_TEST_SUITE_P(E4m3, ForwardFp8, testing::ValuesIn(forward_instances(TANDEM_E4M3)),
                         [](const testing::TestParamInfo<InstanceId>& info) { return info.param.name(); });

TEST_P(ForwardFp8, ScalesOfEveryShape) {
  Problem problem = dense(m() + 5, 2 * kScaleRows + 9, 2);
  problem.batch = 2;
  problem.nheads_k = 1;
  problem.q_scale = scale_of_all(1.25);
  problem.v_scale = scale_of_all(-3);
  expect_right(problem);
  problem.causal = true;
  problem.out_dtype = TANDEM_FP16;
  problem.q_scale = random_scales(2, 1, 1, 1);  // of the key heads
  problem.k_scale = random_scales(2, 1, 1, 2);
  problem.v_scale = random_scales(2, 1, 1, 3);
  expect_right(problem);
  problem.q_scale = random_scales(2, 2, scale_blocks(problem.seqlen_q), 4);
  problem.k_scale = random_scales(2, 1, scale_blocks(problem.seqlen_k), 5);
  problem.v_scale = random_scales(2, 1, scale_blocks(problem.seqlen_k), 6);
  expect_right(problem);
  problem.causal = false;
  problem.has_window = true;
  problem.window_left = 100;
  problem.window_right = 30;
  expect_right(problem);
}

// Blocks count from the start of each sequence, and the last one serves what lies beyond.
TEST_P(ForwardFp8, ScalesOfPackedSequences) {
  Problem problem = packed_problem(id(), {kScaleRows + 3, 0, 40, 2 * kScaleRows + 1},
                                   {3 * kScaleRows + 1, 50, kScaleRows - 1, kScaleRows}, 2);
  problem.nheads_k = 1;
  problem.q_scale = random_scales(4, 2, 2, 7);
  problem.k_scale = random_scales(4, 1, 3, 8);
  problem.v_scale = random_scales(4, 1, 3, 9);
  expect_right(problem);
  problem.causal = true;
  expect_right(problem);
}

TEST_P(ForwardFp8, ZeroNegativeAndTinyScales) {
  Problem problem = dense(64, 5 * kScaleRows);
  problem.k_scale = ScaleSet{1, 1, 5, 3, {1, 0, -1, 0x1p-120, 1.5}};
  problem.v_scale = ScaleSet{1, 1, 5, 3, {1, 2, -1, 0.5, 0}};
  for (const double q_scale : {1.0, -0.75, 0.0, 0x1p-120, 0x1p6}) {
    problem.q_scale = scale_of_all(q_scale);
    problem.causal = !problem.causal;
    expect_right(problem);
  }
}

// O's sum goes from the unit of one block to that of the next: whatever they are, nothing overflows, nor is it lost
// where all are small.
TEST_P(ForwardFp8, ScalesOfVFarApart) {
  Problem problem = dense(64, 8 * kScaleRows);
  problem.out_dtype = TANDEM_BF16;
  for (const std::vector<double>& values :
       {std::vector<double>{1, 0, 0, 0x1p-100, 0x1p40, 0x1p-40, 0, 1},
        {0, 0x1p-100, 0x1p50, 0, 0x1p-126, 1, 0, 0},
        {0x1p-100, 0x1.8p-101, -0x1p-99, 0x1p-100, 0x1.4p-100, 0x1p-102, 0, 0x1p-100}}) {
    problem.v_scale = ScaleSet{1, 1, 8, 3, values};
    expect_right(problem);
    problem.causal = !problem.causal;
  }
}

TEST_P(ForwardFp8, ScalesUnderTransformedScores) {
  Problem problem = dense(m() + 1, 2 * kScaleRows + 9);
  problem.q_scale = random_scales(1, 1, scale_blocks(problem.seqlen_q), 10);
  problem.k_scale = random_scales(1, 1, 3, 11);
  problem.softcap = 2.5;
  expect_right(problem);
  problem.softcap = 0;
  problem.softmax_scale = -0.3;
  problem.causal = true;
  expect_right(problem);
}

// Whatever the scales, and the slots, of keys that no row sees hold [7].
TEST_P(ForwardFp8, ScalesThatNoRowSeesAreNotUsed) {
  Problem problem = dense(30, 3 * kScaleRows);
  problem.seqused_k = {kScaleRows - 5};
  problem.k_scale = random_scales(1, 1, 3, 12);
  problem.v_scale = random_scales(1, 1, 3, 13);
  const ForwardRun clean = run_case(problem, optest::random_inputs(problem, 1, optest::Poison::kNone));
  problem.k_scale->values[1] = problem.v_scale->values[1] = std::nan("");
  problem.k_scale->values[2] = problem.v_scale->values[2] = std::numeric_limits<double>::infinity();
  expect_same_bits(clean, run_case(problem, optest::random_inputs(problem, 1), 2));
}

// Scales that are powers of two are exact wherever they are applied.
TEST_P(ForwardFp8, ScalesMultiplyTheStoredValues) {
  Problem problem = dense(m() + 1, 3 * n() + 7);
  const Inputs inputs = optest::random_inputs(problem, 2);
  const ForwardRun plain = run_case(problem, inputs);
  problem.q_scale = scale_of_all(0x1p60);
  problem.k_scale = scale_of_all(0x1p-60);
  problem.v_scale = scale_of_all(0.25);
  ForwardRun scaled = run_case(problem, inputs);
  for (double& out : scaled.outputs.out) out *= 4;
  expect_same_bits(plain, scaled);
}

// The tensor core's sum loses 7e-4 of itself every 32 keys, always towards 0: 5 % at 4k keys if nothing is done about
// it. What is left must not grow with the length.
TEST_P(ForwardFp8, LongRowsOfVWithAMean) {
  std::vector<double> errors;
  for (const int64_t seqlen_k : {1024, 4096}) {
    for (const bool block_scales : {false, true}) {
      Problem problem = dense(20, seqlen_k);
      problem.out_dtype = TANDEM_FP16;
      if (block_scales) problem.v_scale = ScaleSet{1, 1, seqlen_k / kScaleRows, 3, {}};
      for (int64_t n = 0; block_scales && n < seqlen_k / kScaleRows; ++n) problem.v_scale->values.push_back(1);
      Inputs inputs = optest::random_inputs(problem, 12);
      for (double& v : inputs.v) v = optest::round_to(TANDEM_E4M3, v + 1);
      const ForwardRun run = run_case(problem, inputs);
      ASSERT_EQ(fault_of(problem, inputs, run), "");
      errors.push_back(relative_error(run.outputs.out, optest::dense_attention<double>(problem, inputs, false).out));
      EXPECT_LT(errors.back(), 5e-3) << seqlen_k << " keys, scales of blocks: " << block_scales;
    }
  }
  for (const int block_scales : {0, 1}) EXPECT_LT(errors[2 + block_scales], 1.1 * errors[block_scales]);
}

// Most P lie far below the row's largest.
TEST_P(ForwardFp8, WideScores) {
  Problem problem = dense(40, 1500);
  problem.q_scale = scale_of_all(3);
  const Inputs inputs = optest::random_inputs(problem, 13);
  const ForwardRun run = run_case(problem, inputs);
  ASSERT_EQ(fault_of(problem, inputs, run), "");
  const Inputs real = optest::real_inputs(problem, inputs);
  EXPECT_LT(relative_error(run.outputs.out, optest::dense_attention<double>(problem, real, false).out), 0.03);
}

// One key, the last, has nearly all the weight; the others, far below it, are many, and O is theirs. What comes before
// the reference falls is lost: less than 1 % of the large P's weight.
TEST_P(ForwardFp8, ManySmallPBesideALargeOne) {
  const auto expect_kept = [&](Problem problem, int64_t seen, double drop) {
    problem.softmax_scale = -drop * std::log(2.0);
    Inputs inputs = optest::constant_inputs(problem, 0, 0, 1, 0);
    inputs.q[0] = 1;
    const size_t last = static_cast<size_t>(problem.seqlen_k - 1);
    for (size_t j = 0; j < last; ++j) inputs.k[j * static_cast<size_t>(problem.headdim)] = 1;
    for (size_t c = 0; c < static_cast<size_t>(problem.headdim_v); ++c) {
      inputs.v[last * static_cast<size_t>(problem.headdim_v) + c] = 0;
    }
    const double others = static_cast<double>(seen - 1) * std::exp2(-drop);
    const double out = others / (1 + others);
    const ForwardRun run = run_case(problem, inputs);
    for (double value : run.outputs.out)
      ASSERT_NEAR(value, out, 0.01 + 0.02 * out) << describe(problem) << ", " << drop;
  };
  for (const double drop : {7.0, 11.0, 13.0, 14.0}) {
    for (const int64_t seqlen_k : {1024, 1025, 1060, 1100, 2049}) expect_kept(dense(1, seqlen_k), seqlen_k, drop);
    for (const int64_t window_left : {100, 200, 600}) {
      Problem problem = dense(1, 1000);
      problem.causal = true;
      problem.has_window = true;
      problem.window_left = window_left;
      expect_kept(problem, window_left + 1, drop);
    }
  }
}

// Every block has a new maximum: within e4m3's range of the last one, beyond it, beyond fp32's. In the last, exponents
// are so large that they must be taken relative to the reference before they are rounded.
TEST_P(ForwardFp8, AscendingScores) {
  for (const double exponent : {-30.0, 0.8, 1.9, 9.0, 40.0, 130.0, 1e8}) {
    for (const bool some_rows : {false, true}) {
      Problem problem = dense(40, 5 * n());
      Inputs inputs = optest::random_inputs(problem, 14);
      const double in_range = exponent > 1000 ? exponent / 1e6 : exponent;
      problem.k_scale = scale_of_all(exponent / in_range);
      problem.softmax_scale = 1 / std::sqrt(static_cast<double>(problem.headdim));
      grow_scores(problem, id(), [&](int64_t row) { return !some_rows || row % 7 == 3; }, in_range, inputs);
      for (double& v : inputs.v) v = optest::round_to(TANDEM_E4M3, v + 1);
      EXPECT_EQ(fault_of(problem, inputs, run_case(problem, inputs)), "") << describe(problem) << ", " << exponent;
    }
  }
}

// P of equal scores is a power of two, but where scores are so large that their rounding counts.
TEST_P(ForwardFp8, EqualScores) {
  for (const double scale : {0x1p-8, 0x1p-20, 1.0, 0x1p9}) {
    Problem problem = dense(3, 1000);
    problem.q_scale = problem.k_scale = scale_of_all(scale);
    const Inputs inputs = optest::constant_inputs(problem, 448, 448, 1.5, 0);
    const ForwardRun run = run_case(problem, inputs);
    EXPECT_EQ(fault_of(problem, inputs, run), "") << scale;
    for (const double out : run.outputs.out) EXPECT_EQ(scale < 1 ? out : 1.5, 1.5);
  }
}

// What breaks no rule of the hardware shows in the result.
class PlantedFp8 : public testing::Test {
 protected:
  static constexpr InstanceId kInstance = {1, TANDEM_E4M3, true};

  // Long rows, scales of blocks but of V, V with a mean, used keys that end inside a group of slots, scores that
  // outgrow e4m3.
  PlantedFp8() : problem_(dense_problem(kInstance, 20, 4096)) {
    problem_.seqused_k = {4090};
    problem_.k_scale = random_scales(1, 1, scale_blocks(4096), 1);
    inputs_ = optest::random_inputs(problem_, 1);
    for (double& v : inputs_.v) v = optest::round_to(TANDEM_E4M3, v + 1);
  }

  std::string fault(const std::vector<Fault>& faults, const std::function<void(sm90::ForwardParams&)>& change = {}) {
    Options options;
    options.faults = faults;
    const ForwardRun run = run_forward(problem_, inputs_, 1, options, change);
    EXPECT_FALSE(run.result.report) << run.result.text();
    EXPECT_TRUE(faults.empty() || run.result.faults_applied);
    return fault_of(problem_, inputs_, run);
  }

  Problem problem_;
  Inputs inputs_;
};

TEST_F(PlantedFp8, NothingBroken) {
  EXPECT_EQ(fault({}), "");
}

// The sums of P that O is divided by are the same products' and lose as much, so that what a mean of V loses cancels;
// the rest does not.
TEST_F(PlantedFp8, OIsSummedInOneLevel) {
  const auto error = [&](const std::function<void(sm90::ForwardParams&)>& change) {
    const ForwardRun run = run_forward(problem_, inputs_, 1, {}, change);
    const Inputs real = optest::real_inputs(problem_, inputs_);
    return relative_error(run.outputs.out, optest::dense_attention<double>(problem_, real, false).out);
  };
  const double two_levels = error({});
  const double one_level = error([](sm90::ForwardParams& params) { params.promotion_blocks = 1 << 20; });
  EXPECT_GT(one_level, 2 * two_levels) << two_levels;
}

TEST_F(PlantedFp8, ScaleOfTheFirstBlock) {
  EXPECT_NE(fault({}, [](sm90::ForwardParams& params) { params.k_scale.block_stride = 0; }), "");
}

TEST_F(PlantedFp8, SlotsAreNotCleaned) {
  EXPECT_NE(fault({skip(Op::kStoreShared, "", "clear_slots")}), "");
}

TEST_F(PlantedFp8, OverflowOfPIsNotNoticed) {
  problem_.k_scale = scale_of_all(1);
  grow_scores(problem_, kInstance, [](int64_t row) { return row % 64 == 5; }, 2, inputs_);
  EXPECT_EQ(fault({}), "");
  EXPECT_NE(fault({skip(Op::kVote, "", "lazy_softmax_fp8")}), "");
}

}  // namespace
}  // namespace tandem::model
