// What attention in e4m3 has beside the rules of every type: scales, V in slots, the rounding of P, long rows. A target
// with head dims of its own runs all in those.
#include <functional>
#include <random>

#include "backend_test.h"
#include "dense_attention.h"
#include "quantize_case.h"

namespace tandem::optest {
namespace {

class Fp8 : public BackendTest {
 protected:
  // Of its own: the reference does not round P.
  bool rounds_p() const { return backend() != TANDEM_BACKEND_REFERENCE; }

  // Of its own: long sums of products lose what tensor cores cut off.
  bool on_tensor_cores() const { return backend() == TANDEM_BACKEND_SM90; }

  Problem fp8_problem(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k,
                      int64_t headdim) const {
    return in_bf16(dense(batch, seqlen_q, seqlen_k, nheads_q, nheads_k, headdim, TANDEM_E4M3));
  }
  Problem packed_fp8_problem(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k,
                             int64_t nheads_q, int64_t nheads_k, int64_t headdim) const {
    return in_bf16(packed(lengths_q, lengths_k, nheads_q, nheads_k, headdim, TANDEM_E4M3));
  }
  static Problem in_bf16(Problem problem) {
    problem.out_dtype = TANDEM_BF16;
    return problem;
  }
  // Whether V is in slots: what the target has.
  std::vector<bool> layouts_of_v() const {
    return target().fixed() ? std::vector<bool>{target().v_in_slots} : std::vector<bool>{false, true};
  }
  // The finest O that the target writes, and half a unit of it in the last place of numbers below 1.
  int32_t finest_out() const { return target().fp32_results ? int32_t{TANDEM_FP32} : int32_t{TANDEM_FP16}; }
  double rounding_of(double magnitude) const { return ulp(finest_out(), magnitude) / 2; }

  std::string fp8_fault(const Problem& problem, const Inputs& inputs) const {
    return check_problem(problem, inputs, backend(), false);
  }
};

bool takes_e4m3(const Target& target) {
  return !target.fixed() || target.dtype == TANDEM_E4M3;
}
TANDEM_ON_TARGETS_WHERE(takes_e4m3, Fp8);

ScaleSet scale_of_all(double value) {
  return {1, 1, 1, 1, {value}};
}

ScaleSet random_scales(int64_t batch, int64_t heads, int64_t blocks, uint64_t seed) {
  std::mt19937_64 random(seed);
  ScaleSet scales{batch, heads, blocks, 3, {}};
  for (int64_t n = 0; n < batch * heads * blocks; ++n) {
    scales.values.push_back(static_cast<float>(0.5 + static_cast<double>(random() >> 11) * 0x1p-53));
  }
  return scales;
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

// Scales of (batch, key heads), one of them absent: it counts as 1, and q's head h has that of its group [9].
TEST_P(Fp8, C79_ScalesOfKeyHeadsAndAnAbsentOne) {
  Problem problem = fp8_problem(2, 9, 140, 6, 2, 64);
  problem.q_scale = ScaleSet{2, 2, 1, 2, {0.5, 1.5, 0.75, 1.25}};
  problem.k_scale = ScaleSet{2, 2, 1, 2, {1.25, 0.5, 1, 0.625}};
  const Inputs inputs = random_inputs(problem, 1);
  EXPECT_EQ(fp8_fault(problem, inputs), "");
  const Results absent = forward(problem, inputs);
  problem.v_scale = scale_of_all(1);
  expect_same_bits(forward(problem, inputs), absent);
}

// Scales that are powers of two are exact wherever they are applied.
TEST_P(Fp8, ScalesMultiplyTheStoredValues) {
  Problem problem = fp8_problem(1, 20, 300, 2, 2, 32);
  const Inputs inputs = random_inputs(problem, 2);
  const Results plain = forward(problem, inputs);
  problem.q_scale = scale_of_all(0x1p60);
  problem.k_scale = scale_of_all(0x1p-60);
  problem.v_scale = scale_of_all(0.25);
  Results scaled = forward(problem, inputs);
  for (double& out : scaled.out) out *= 4;
  expect_same_bits(plain, scaled);
}

TEST_P(Fp8, BlockScalesAroundEveryEdgeAndBothLayoutsOfV) {  // C76's lengths
  uint64_t seed = 3;
  for (const int64_t seqlen_q : {1, 63, 129}) {
    for (const int64_t seqlen_k : {1, 65, 127, 128, 129, 257}) {
      for (const bool causal : {false, true}) {
        Problem problem = fp8_problem(1, seqlen_q, seqlen_k, 2, 1, 48);
        problem.causal = causal;
        problem.v_transposed = target().fixed() ? target().v_in_slots : seed % 2 == 0;
        problem.q_scale = random_scales(1, 2, (seqlen_q + 127) / 128, ++seed);
        problem.k_scale = random_scales(1, 1, (seqlen_k + 127) / 128, ++seed);
        problem.v_scale = random_scales(1, 1, (seqlen_k + 127) / 128, seed += 3);
        ASSERT_EQ(fp8_fault(problem, random_inputs(problem, seed)), "") << describe(problem);
      }
    }
  }
}

// Blocks count from the start of each sequence, so a sequence's bits are the same alone and behind others [12].
TEST_P(Fp8, BlocksCountFromTheStartOfEachSequence) {
  Problem alone = packed_fp8_problem({150}, {200}, 2, 1, 64);
  alone.q_scale = random_scales(1, 2, 2, 5);
  alone.k_scale = random_scales(1, 1, 2, 6);
  alone.v_scale = random_scales(1, 1, 2, 7);
  Problem together = packed_fp8_problem({77, 150}, {31, 200}, 2, 1, 64);
  const auto behind_ones = [](const ScaleSet& scales) {
    ScaleSet both = scales;
    both.batch = 2;
    both.values.insert(both.values.begin(), scales.values.size(), 1.0);
    return both;
  };
  together.q_scale = behind_ones(*alone.q_scale);
  together.k_scale = behind_ones(*alone.k_scale);
  together.v_scale = behind_ones(*alone.v_scale);
  const Inputs inputs = random_inputs(alone, 8);
  Inputs both = random_inputs(together, 9);
  std::copy(inputs.q.begin(), inputs.q.end(), both.q.begin() + 77 * 2 * alone.headdim);
  std::copy(inputs.k.begin(), inputs.k.end(), both.k.begin() + 31 * alone.headdim);
  std::copy(inputs.v.begin(), inputs.v.end(), both.v.begin() + 31 * alone.headdim_v);
  for (const bool transposed : layouts_of_v()) {
    alone.v_transposed = together.v_transposed = transposed;
    EXPECT_EQ(fp8_fault(together, both), "");
    const std::vector<double> out = forward(together, both).out;
    EXPECT_TRUE(same_bits(forward(alone, inputs).out, rows_of(out, 77, 150, 2 * alone.headdim_v)));
  }
}

TEST_P(Fp8, VInSlotsGivesTheSameBits) {
  if (layouts_of_v().size() < 2) GTEST_SKIP() << "this target has one layout of V";
  for (const bool packed : {false, true}) {
    Problem problem =
        packed ? packed_fp8_problem({5, 0, 33}, {100, 3, 131}, 2, 2, 64) : fp8_problem(2, 40, 131, 2, 2, 64);
    problem.out_dtype = TANDEM_FP16;
    problem.v_scale = random_scales(problem.batch, 2, 2, 10);
    problem.causal = true;
    const Inputs inputs = random_inputs(problem, 11);
    const Results rows = forward(problem, inputs);
    problem.v_transposed = true;
    expect_same_bits(rows, forward(problem, inputs));
  }
}

// p = 0.3 is 76.8 / 256, which e4m3 rounds to 80 / 256. The row sum of the LSE has p as it was; so has that which O is
// divided by on a CPU. On tensor cores that one has p as it was rounded.
TEST_P(Fp8, PIsRoundedAfterItIsSummed) {
  Problem problem = fp8_problem(1, 1, 2, 1, 1, 16);
  problem.out_dtype = finest_out();
  problem.softmax_scale = std::log(0.3);
  Inputs inputs = constant_inputs(problem, 0, 0, 0, 0);
  inputs.q[0] = 1;
  inputs.k[static_cast<size_t>(problem.headdim)] = 1;  // the second key: score log 0.3
  inputs.v[static_cast<size_t>(problem.headdim_v)] = 4;
  const Results results = forward(problem, inputs);
  const double p = rounds_p() ? 80.0 / 256 : 0.3;
  EXPECT_NEAR(results.out[0], 4 * p / (on_tensor_cores() ? 1 + p : 1.3), 1e-6 + rounding_of(1));
  EXPECT_NEAR(results.lse[0], std::log(1.3), 1e-6);
}

// P below 2^-18 of the row's largest (GPU: 2^-12, where the row's first block is masked) vanishes from O, but not from
// the LSE.
TEST_P(Fp8, TheSmallestP) {
  const double largest_p8 = on_tensor_cores() ? 0x1p2 : 0x1p8;
  for (const double score : {-8.0, -9.5, -11.0, -12.5, -14.0, -15.5, -16.0, -17.0, -18.5}) {
    Problem problem = fp8_problem(1, 1, 2, 1, 1, 16);
    problem.out_dtype = finest_out();
    problem.softmax_scale = score * std::log(2.0);
    Inputs inputs = constant_inputs(problem, 0, 0, 0, 0);
    inputs.q[0] = 1;
    inputs.k[static_cast<size_t>(problem.headdim)] = 1;
    inputs.v[static_cast<size_t>(problem.headdim_v)] = 448;
    const double p = std::exp2(score);
    const double kept = rounds_p() ? round_to(TANDEM_E4M3, p * largest_p8) / largest_p8 : p;
    const double out = 448 * kept / (1 + (on_tensor_cores() ? kept : p));
    EXPECT_NEAR(forward(problem, inputs).out[0], out, 1e-7 + rounding_of(out)) << score;
  }
}

// One key has nearly all the weight; the others, far below it, are many, and O is theirs. It comes first, as blocks go,
// in a block that is masked or not, or in a window, where all are.
TEST_P(Fp8, ManySmallPBesideALargeOne) {
  if (!rounds_p()) GTEST_SKIP() << "the reference has nothing to round";
  const auto expect_kept = [&](Problem problem, int64_t seen, double drop) {
    problem.out_dtype = finest_out();
    problem.softmax_scale = -drop * std::log(2.0);
    Inputs inputs = constant_inputs(problem, 0, 0, 1, 0);
    inputs.q[0] = 1;
    const size_t last = static_cast<size_t>(problem.seqlen_k - 1);
    for (size_t j = 0; j < last; ++j) inputs.k[j * static_cast<size_t>(problem.headdim)] = 1;
    for (size_t c = 0; c < static_cast<size_t>(problem.headdim_v); ++c) {
      inputs.v[last * static_cast<size_t>(problem.headdim_v) + c] = 0;
    }
    const double others = static_cast<double>(seen - 1) * std::exp2(-drop);
    const double out = others / (1 + others);
    for (double value : forward(problem, inputs).out) ASSERT_NEAR(value, out, 0.01 + 0.02 * out) << describe(problem);
  };
  for (const double drop : {7.0, 10.0, 11.0, 12.0, 13.0, 14.0}) {
    for (const int64_t seqlen_k : {1024, 1025, 1060, 1150, 4096, 4097}) {
      expect_kept(fp8_problem(1, 1, seqlen_k, 1, 1, 64), seqlen_k, drop);
    }
    for (const int64_t window_left : {100, 200, 600}) {
      Problem problem = fp8_problem(1, 1, 1000, 1, 1, 64);
      problem.causal = true;
      problem.has_window = true;
      problem.window_left = window_left;
      expect_kept(problem, window_left + 1, drop);
    }
  }
}

// Equal scores have p = 1 each, which is exact.
TEST_P(Fp8, AllEqualInputs) {
  for (const double scale : {1.0, 0x1p9, 0x1p-20}) {
    Problem problem = fp8_problem(1, 3, 1000, 1, 1, 64);
    problem.q_scale = problem.k_scale = scale_of_all(scale);
    const Results results = forward(problem, constant_inputs(problem, 448, 448, 1.5, 0));
    if (on_tensor_cores() && scale >= 1) continue;  // the rounding of scores of 1e6 and more counts
    expect_all(results.out, 1.5);
    const double score = 448.0 * 448 * problem.scale() * static_cast<double>(problem.headdim) * scale * scale;
    for (double lse : results.lse) EXPECT_NEAR(lse, score + std::log(1000.0), 1e-5 * std::max(1.0, score));
  }
}

// The error of a row with a mean does not grow with its length.
TEST_P(Fp8, LongRowsOfVWithAMean) {
  if (!rounds_p()) GTEST_SKIP() << "the reference has nothing to round";
  std::vector<double> errors;
  for (const int64_t seqlen_k : {1024, 4096, 16384}) {
    Problem problem = fp8_problem(1, 16, seqlen_k, 1, 1, 64);
    problem.out_dtype = finest_out();
    Inputs inputs = random_inputs(problem, 12, Poison::kNone);
    for (double& v : inputs.v) v = round_to(TANDEM_E4M3, v + 1);
    const Results exact = dense_attention<double>(problem, inputs, false);
    errors.push_back(relative_error(forward(problem, inputs).out, exact.out));
  }
  EXPECT_LT(errors[0], on_tensor_cores() ? 5e-3 : 2.5e-3);
  for (size_t n : {1, 2}) EXPECT_LT(errors[n], (on_tensor_cores() ? 1.1 : 1) * errors[n - 1]);
}

// Numbers of keys at the edges of tiles and blocks are as good as their neighbours.
TEST_P(Fp8, C77_DecodingHasNoStepAtTileEdges) {
  if (!rounds_p()) GTEST_SKIP() << "the reference has nothing to round";
  std::vector<int64_t> lengths;
  for (int64_t n = 4; n < 1024; ++n) {
    if (n % 16 < 2 || n % 96 == 95 || n % 128 == 127) lengths.push_back(n);
  }
  std::vector<double> errors;
  for (const int64_t seqlen_k : lengths) {
    Problem problem = fp8_problem(1, 1, seqlen_k, 6, 1, 128);
    problem.out_dtype = finest_out();
    const Inputs inputs = random_inputs(problem, 13, Poison::kNone);
    errors.push_back(relative_error(forward(problem, inputs).out, dense_attention<double>(problem, inputs, false).out));
    EXPECT_LT(errors.back(), 0.06) << seqlen_k << " keys";
  }
  for (size_t n = 1; n + 1 < errors.size(); ++n) {
    EXPECT_LT(errors[n], 2 * std::max(errors[n - 1], errors[n + 1])) << lengths[n] << " keys";
  }
}

TEST_P(Fp8, StorageAndScalesThatNoRowSeesAreNotUsed) {  // [7]
  Problem problem = fp8_problem(1, 30, 300, 1, 1, 64);
  problem.seqused_k = {120};
  problem.k_scale = random_scales(1, 1, 3, 14);
  problem.v_scale = random_scales(1, 1, 3, 15);
  for (const bool transposed : layouts_of_v()) {
    problem.v_transposed = transposed;
    const Results clean = forward(problem, random_inputs(problem, 16, Poison::kNone));
    Problem poisoned = problem;
    poisoned.k_scale->values[1] = poisoned.v_scale->values[1] = kNan;
    poisoned.k_scale->values[2] = poisoned.v_scale->values[2] = kInfinity;
    expect_same_bits(clean, forward(poisoned, random_inputs(problem, 16, Poison::kNan)));
  }
}

TEST_P(Fp8, C80_MixedTypesAreRefusedInWords) {
  if (target().fixed()) GTEST_SKIP() << "not by instance";
  const auto refusal = [&](const std::function<void(tandem_forward_params&)>& change) {
    HostTensor q({1, 4, 1, 16}, TANDEM_E4M3), k = q, v = q, out({1, 4, 1, 16}, TANDEM_BF16);
    tandem_forward_params params = {};
    params.struct_size = sizeof params;
    params.exec.backend = backend();
    params.q = q.view();
    params.k = k.view();
    params.v = v.view();
    params.out = out.view();
    change(params);
    EXPECT_EQ(tandem_forward_check(&params), TANDEM_INVALID_ARGUMENT);
    return std::string(tandem_last_error());
  };
  const auto scale = [](int32_t dtype) {
    static float storage = 1;
    tandem_tensor tensor = {};
    tensor.data = &storage;
    tensor.dtype = dtype;
    tensor.ndim = 1;
    tensor.shape[0] = tensor.stride[0] = 1;
    return tensor;
  };
  using Params = tandem_forward_params;
  EXPECT_EQ(refusal([](Params& p) { p.q.dtype = TANDEM_BF16; }),
            "k.dtype is e4m3 but q.dtype is bf16; allowed is bf16");
  EXPECT_EQ(refusal([&](Params& p) {
              p.q.dtype = p.k.dtype = p.v.dtype = TANDEM_BF16;
              p.q_scale = scale(TANDEM_FP32);
            }),
            "q_scale is given but q.dtype is bf16; scales belong to e4m3 and e5m2 only");
  EXPECT_EQ(refusal([&](Params& p) { p.v_scale = scale(TANDEM_FP16); }), "v_scale.dtype is fp16; allowed is fp32");
  EXPECT_EQ(refusal([](Params& p) { p.out.dtype = TANDEM_E4M3; }),
            "out.dtype is e4m3 but q.dtype is e4m3; allowed are fp16, bf16 and fp32");
}

// The whole way: outliers, rotated, quantised by blocks, and attention over them, against the 16-bit values in double.
TEST_P(Fp8, RotationAndBlockScalesOnOutliers) {
  const int64_t seqlen = 256;
  Problem exact = fp8_problem(1, seqlen, seqlen, 1, 1, 64);
  const int64_t odd = exact.headdim % 3 == 0 ? exact.headdim / 12 : exact.headdim;
  if ((odd & (odd - 1)) != 0) GTEST_SKIP() << "no Hadamard matrix of " << exact.headdim;
  exact.dtype = TANDEM_BF16;
  Inputs inputs = random_inputs(exact, 17);
  std::mt19937_64 random(18);
  std::normal_distribution<double> outlier(0, 10);
  for (std::vector<double>* values : {&inputs.q, &inputs.k, &inputs.v}) {
    for (double& value : *values) {
      if (random() % 1000 == 0) value = round_to(TANDEM_BF16, value + outlier(random));
    }
  }
  const Results expected = dense_attention<double>(exact, inputs, false);
  const auto error_with = [&](bool rotate, Granularity granularity) {
    Problem problem = fp8_problem(1, seqlen, seqlen, 1, 1, 64);
    problem.out_dtype = finest_out();
    Inputs stored = inputs;
    const auto quantized = [&](std::vector<double>& values, bool rotated) {
      QuantizeCase test;
      test.seqlen = seqlen;
      test.headdim = static_cast<int64_t>(values.size()) / seqlen;
      test.granularity = granularity;
      test.rotate = rotated;
      const Quantized got = quantize(test, values, on_tensor_cores() ? TANDEM_BACKEND_REFERENCE : backend());
      EXPECT_EQ(got.error, "");
      values = got.out;
      return ScaleSet{1, 1, static_cast<int64_t>(got.scale.size()), granularity == Granularity::kTensor ? 1 : 3,
                      got.scale};
    };
    problem.q_scale = quantized(stored.q, rotate);
    problem.k_scale = quantized(stored.k, rotate);
    problem.v_scale = quantized(stored.v, false);
    return relative_error(forward(problem, stored).out, expected.out);
  };
  const double rotated = error_with(true, Granularity::kBlock);
  EXPECT_LT(rotated, 0.08);
  EXPECT_LT(rotated, error_with(false, Granularity::kTensor));
}

TEST_P(Fp8, ThreadsChangeNoBit) {  // [12]
  Problem problem = fp8_problem(2, 300, 300, 4, 2, 64);
  problem.causal = true;
  problem.k_scale = random_scales(2, 2, 3, 19);
  const Inputs inputs = random_inputs(problem, 20);
  problem.num_threads = 1;
  const Results one = forward(problem, inputs);
  problem.num_threads = 3;
  expect_same_bits(one, forward(problem, inputs));
}

}  // namespace
}  // namespace tandem::optest
