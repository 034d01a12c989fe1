// Cases from the field, by number: masks, softcap, sinks, LSE and its gradient, numerics, head dims, validation.

#include <algorithm>

#include "backend_test.h"

namespace tandem::optest {
namespace {

class CaseNumerics : public BackendTest {};

// Of the backward.
class CaseGradients : public BackendTest {};
class CaseDeterminism : public BackendTest {};

// Of results over parts of the keys.
class CaseMerges : public BackendTest {
 protected:
  struct Merged {
    std::vector<double> out, lse;
  };

  // tandem_merge over parts of shape (batch 1, rows, heads 1, columns).
  Merged merge(const std::vector<std::vector<double>>& outs, const std::vector<std::vector<double>>& lses,
               const std::vector<double>& sink = {}) const {
    const int64_t parts = static_cast<int64_t>(outs.size());
    const int64_t rows = static_cast<int64_t>(lses[0].size());
    const int64_t columns = static_cast<int64_t>(outs[0].size()) / rows;
    HostTensor out_partial({parts, 1, rows, 1, columns}, TANDEM_FP32);
    HostTensor lse_partial({parts, 1, 1, rows}, TANDEM_FP32);
    for (int64_t n = 0; n < out_partial.count(); ++n) {
      out_partial.set(n, outs[static_cast<size_t>(n / (rows * columns))][static_cast<size_t>(n % (rows * columns))]);
    }
    for (int64_t n = 0; n < lse_partial.count(); ++n) {
      lse_partial.set(n, lses[static_cast<size_t>(n / rows)][static_cast<size_t>(n % rows)]);
    }
    HostTensor out({1, rows, 1, columns}, TANDEM_FP32);
    HostTensor lse({1, 1, rows}, TANDEM_FP32);
    HostTensor sinks = sink.empty() ? HostTensor() : HostTensor({1}, TANDEM_FP32);
    if (!sink.empty()) sinks.set(0, sink[0]);
    run_merge(out_partial, lse_partial, sinks, out, lse);
    return {out.values(), lse.values()};
  }

  void run_merge(HostTensor& out_partial, HostTensor& lse_partial, HostTensor& sink, HostTensor& out,
                 HostTensor& lse) const {
    CallMemory memory(backend());
    tandem_merge_params params = {};
    params.struct_size = sizeof params;
    params.exec.backend = backend();
    memory.set_place(params.exec);
    params.out_partial = memory.view(out_partial);
    params.lse_partial = memory.view(lse_partial);
    params.sink = memory.view(sink);
    params.out = memory.view(out);
    params.lse = memory.view(lse);
    EXPECT_EQ(tandem_merge(&params), TANDEM_OK) << tandem_last_error();
    memory.bring_home();
  }
};

TEST_P(CaseMerges, C13_MergeOfEmptyAndRealParts) {
  const Merged empty = merge({{0, 0}, {kNan, kNan}}, {{-kInfinity}, {-kInfinity}});
  expect_all(empty.out, 0);
  EXPECT_EQ(empty.lse[0], -kInfinity);
  const float value = 0.1f;
  const float lse = 1.7f;
  const Merged one = merge({{kNan, 0}, {value, -0.0}}, {{-kInfinity}, {lse}});
  EXPECT_EQ(one.out[0], value);
  EXPECT_TRUE(std::signbit(one.out[1]));
  EXPECT_EQ(one.lse[0], lse);
  const Merged two = merge({{1, 0}, {0, 1}}, {{1}, {2}});
  EXPECT_NEAR(two.lse[0], 2.3132617, 1e-6);
  EXPECT_NEAR(two.out[0], std::exp(1 - 2.3132617), 1e-6);
  EXPECT_NEAR(two.out[1], std::exp(2 - 2.3132617), 1e-6);
}

// Partial results that lie apart, in strides of the caller's.
TEST_P(CaseMerges, C29_MergeOfPaddedPartialResults) {
  const Shape out_shape = {2, 5, 3, 16}, lse_shape = {2, 3, 5};
  const auto parts_of = [](Shape shape) {
    shape.insert(shape.begin(), 3);
    return shape;
  };
  const auto strided = [](std::vector<int> order, int64_t padding) {
    Layout layout;
    layout.order = std::move(order);
    layout.padding = padding;
    return layout;
  };
  const auto merged = [&](const Layout& out_layout, const Layout& lse_layout) {
    HostTensor out_partial(parts_of(out_shape), TANDEM_FP32, out_layout);
    HostTensor lse_partial(parts_of(lse_shape), TANDEM_FP32, lse_layout);
    for (int64_t n = 0; n < out_partial.count(); ++n) out_partial.set(n, static_cast<double>(n * 7 % 23) - 11);
    for (int64_t n = 0; n < lse_partial.count(); ++n) lse_partial.set(n, static_cast<double>(n * 5 % 13) / 4 - 1);
    HostTensor out(out_shape, TANDEM_FP32, out_layout.padding > 0 ? strided({}, 4) : Layout());
    HostTensor lse(lse_shape, TANDEM_FP32, lse_layout.padding > 0 ? strided({2, 0, 1}, 2) : Layout());
    HostTensor no_sink;
    for (HostTensor* tensor : {&out, &lse}) tensor->snapshot();
    run_merge(out_partial, lse_partial, no_sink, out, lse);
    for (HostTensor* tensor : {&out, &lse}) EXPECT_EQ(tensor->changes_outside_view(), "");
    Results results;
    results.out = out.values();
    results.lse = lse.values();
    return results;
  };
  const Results expected = merged({}, {});
  for (double value : expected.out) ASSERT_LE(std::fabs(value), 11);  // weights sum to 1
  expect_same_bits(expected, merged(strided({1, 0, 3, 2, 4}, 5), strided({3, 1, 0, 2}, 3)));
}

TEST_P(CaseNumerics, C54_WindowOfFourTokens) {
  Problem problem = dense(1, 8, 8, 1, 1, 8);
  problem.has_window = true;
  problem.window_right = 0;
  problem.softmax_scale = 0;
  const Inputs inputs = random_inputs(problem, 54, Poison::kNone);
  problem.window_left = 3;
  EXPECT_NEAR(forward(problem, inputs).lse[5], std::log(4.0), lse_tolerance(1));  // keys 2 to 5
  problem.window_left = 4;
  EXPECT_NEAR(forward(problem, inputs).lse[5], std::log(5.0), lse_tolerance(1));
  expect_correct(problem, 54);
}

// All of these are the same row intervals, so even the bits agree.
TEST_P(CaseNumerics, C55_CausalAsAWindow) {
  Problem problem = dense(1, 512, 512, 1, 1, 32);
  const Inputs inputs = random_inputs(problem, 55);
  problem.causal = true;
  const Results causal = forward(problem, inputs);
  problem.causal = false;
  problem.has_window = true;
  problem.window_right = 0;
  for (int64_t left : {int64_t{-1}, int64_t{512}, int64_t{511}, int64_t{1000000}, INT64_MAX}) {
    problem.window_left = left;
    expect_same_bits(causal, forward(problem, inputs));
  }
}

TEST_P(CaseNumerics, C56_OnlyMinusOneOpensASide) {
  for (const auto& [left, right] : {std::pair<int64_t, int64_t>{-1, -3}, {-5, 2}}) {
    Problem problem = dense(1, 4, 4, 1, 1, 8);
    const Inputs inputs = random_inputs(problem, 56);
    problem.has_window = true;
    problem.window_left = left;
    problem.window_right = right;
    Runner runner(problem, inputs, backend());
    EXPECT_EQ(runner.forward(), TANDEM_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tandem_last_error()).find("window"), std::string::npos);
  }
}

TEST_P(CaseNumerics, C57_KeysOutsideTheWindow) {
  for (int64_t seqlen_q : {1, 5, 64}) {
    Problem problem = dense(1, seqlen_q, 1000, 24, 2, 16);
    problem.has_window = true;
    problem.window_left = 127;
    problem.window_right = 0;
    Inputs inputs = random_inputs(problem, 57);
    for (std::vector<double>* values : {&inputs.k, &inputs.v}) {
      for (double& value : *values) value = std::isnan(value) ? 1e4 : value;
    }
    EXPECT_EQ(fault(problem, inputs), "");
  }
}

TEST_P(CaseNumerics, C59_WindowsOverUnequalLengths) {
  for (bool causal : {false, true}) {
    Problem problem = packed({5, 9, 1, 300}, {9, 5, 300, 1}, 2, 1, 16);
    problem.has_window = true;
    problem.window_left = 2;
    problem.window_right = 1;
    problem.causal = causal;
    expect_correct(problem, 59);
  }
}

TEST_P(CaseNumerics, C60_AttentionChunks) {
  Problem problem = dense(1, 8, 8, 1, 1, 8);
  problem.attention_chunk = 4;
  problem.causal = true;
  problem.softmax_scale = 0;
  const Results results = forward(problem, random_inputs(problem, 60, Poison::kNone));
  for (size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(results.lse[i], std::log(1.0 + static_cast<double>(i % 4)), lse_tolerance(1));
  problem.softmax_scale.reset();
  expect_correct(problem, 60);
}

TEST_P(CaseNumerics, C63_SoftcapAndItsSlope) {
  TANDEM_SKIP_IN_E4M3();
  const double scores[] = {10, 100, -100};
  const double capped[] = {9.645382, 29.923739, -29.923739};
  const double slopes[] = {0.896630, 0.005078, 0.005078};
  for (int n = 0; n < 3; ++n) {
    Problem problem = dense(1, 1, 1, 1, 1, 1);
    problem.softcap = 30;
    problem.softmax_scale = 1;
    problem.with_dlse = true;
    Inputs inputs = constant_inputs(problem, scores[n], 1, 1, 0);
    inputs.k = in_first_column({1}, problem.headdim);
    inputs.dlse = {1};  // d LSE / d q is the slope, as P = k = 1
    const Results results = both(problem, inputs);
    EXPECT_NEAR(results.lse[0], capped[n], std::max(2e-5, lse_tolerance(capped[n])));
    if (gradients()) {
      EXPECT_NEAR(results.dq[0], slopes[n], std::max(2e-6, tolerance(slopes[n])));
    }
  }
  Problem problem = packed({40, 33}, {70, 20}, 2, 1, 256);
  problem.softcap = 30;
  problem.has_window = true;
  problem.window_left = 9;
  expect_correct(problem, 63);
}

TEST_P(CaseNumerics, C64_LearnableSink) {
  Problem problem = dense(1, 1, 2, 1, 1, 1);
  problem.sink = {0};
  Inputs inputs = constant_inputs(problem, 0, 0, 0, 1);
  inputs.v = in_first_column({3, 6}, problem.headdim_v);
  const Results results = both(problem, inputs);
  EXPECT_NEAR(results.out[0], 3, tolerance(3));
  EXPECT_NEAR(results.lse[0], std::log(3.0), lse_tolerance(1));  // with the sink
  if (gradients()) {                                             // - 1/3 * dout * out
    EXPECT_NEAR(results.dsink[0], -1, tolerance(1));
  }
}

// Two parts exclude the sink, the merge adds it once.
TEST_P(CaseMerges, C64_TheSinkOfParts) {
  const Merged merged = merge({{3}, {6}}, {{0}, {0}}, {0});
  EXPECT_NEAR(merged.out[0], 3, 1e-6);
  EXPECT_NEAR(merged.lse[0], std::log(3.0), 1e-6);
  const Merged only_sink = merge({{kNan}, {kNan}}, {{-kInfinity}, {-kInfinity}}, {0.5});
  EXPECT_EQ(only_sink.out[0], 0);
  EXPECT_EQ(only_sink.lse[0], 0.5);
}

TEST_P(CaseNumerics, C65_LseOfEqualScores) {
  for (int64_t keys : {1, 2, 3, 5, 1023, 1024}) {
    const Problem batch = dense(2, 2, keys, 2, 1, 16);
    const Results a = forward(batch, constant_inputs(batch, 0, 1, 1, 0));
    const int32_t length = static_cast<int32_t>(keys);
    const Problem pair = packed({2, 1}, {length, length}, 2, 1, 16);
    const Results b = forward(pair, constant_inputs(pair, 0, 1, 1, 0));
    EXPECT_EQ(a.lse.size(), size_t{8});
    EXPECT_EQ(b.lse.size(), size_t{6});
    const double expected = std::log(static_cast<double>(keys));
    for (double lse : a.lse) EXPECT_NEAR(lse, expected, std::max(1e-5, lse_tolerance(expected)));
    for (double lse : b.lse) EXPECT_NEAR(lse, expected, std::max(1e-5, lse_tolerance(expected)));
  }
}

TEST_P(CaseGradients, C67_GradientThroughLse) {
  Problem problem = dense(1, 1, 2, 1, 1, 1);
  problem.softmax_scale = 1;
  problem.with_dlse = true;
  const double score = round_to(target().fixed() ? problem.dtype : int32_t{TANDEM_FP32}, std::log(3.0));
  const double p = std::exp(score) / (1 + std::exp(score));  // 0.75, but for this rounding
  Inputs inputs = constant_inputs(problem, 0, 0, 0, 0);
  inputs.q = in_first_column({1}, problem.headdim);
  inputs.k = in_first_column({0, score}, problem.headdim);
  inputs.v = in_first_column({0, 4}, problem.headdim_v);
  inputs.dlse = {1};
  const auto of_keys = [&](double first, double second) { return in_first_column({first, second}, problem.headdim); };
  const Results through_lse = both(problem, inputs);
  expect_near(through_lse.dk, of_keys(1 - p, p), tolerance(0.75));  // dS, as q = 1
  inputs.dlse = {0};
  inputs.dout = in_first_column({1}, problem.headdim_v);
  const Results through_out = both(problem, inputs);
  EXPECT_NEAR(through_out.out[0], 4 * p, tolerance(3));
  EXPECT_NEAR(through_out.lse[0], std::log(4.0), std::max(1e-6, 0.75 * std::fabs(score - std::log(3.0)) + 1e-5));
  // delta has the rounding of O.
  const double ds_tolerance = target().fixed() ? ulp(problem.dtype, 3) + tolerance(0.75) : 2e-6;
  expect_near(through_out.dk, of_keys(-p * 4 * (1 - p), p * 4 * (1 - p)), ds_tolerance);
  expect_near(through_out.dv, in_first_column({1 - p, p}, problem.headdim_v), tolerance(0.75));
}

// Ring attention: each chunk of keys by itself, merged; then each chunk's backward with the global out and LSE.
TEST_P(CaseMerges, C69_KeysInChunksWithTheGlobalOutAndLse) {
  Problem whole = dense(1, 40, 90, 1, 1, 16);
  Problem chunk = dense(1, 40, 30, 1, 1, 16);
  if (target().fp32_results) whole.out_dtype = chunk.out_dtype = TANDEM_FP32;
  const Inputs inputs = random_inputs(whole, 69);
  std::vector<Inputs> parts(3, inputs);
  std::vector<std::vector<double>> outs, lses;
  for (size_t n = 0; n < 3; ++n) {
    parts[n].k = rows_of(inputs.k, static_cast<int64_t>(n) * 30, 30, whole.headdim);
    parts[n].v = rows_of(inputs.v, static_cast<int64_t>(n) * 30, 30, whole.headdim_v);
    const Results results = forward(chunk, parts[n]);
    outs.push_back(results.out);
    lses.push_back(results.lse);
  }
  const Merged merged = merge(outs, lses);
  Results ring;
  ring.out = merged.out;
  ring.lse = merged.lse;
  ring.dq.assign(gradients() ? inputs.q.size() : 0, 0);
  for (size_t n = 0; n < 3 && gradients(); ++n) {
    Runner runner(chunk, parts[n], backend());
    runner.set_forward(merged.out, merged.lse);
    ASSERT_EQ(runner.backward(), TANDEM_OK) << tandem_last_error();
    const Results& part = runner.results();
    for (size_t c = 0; c < ring.dq.size(); ++c) ring.dq[c] += part.dq[c];
    ring.dk.insert(ring.dk.end(), part.dk.begin(), part.dk.end());
    ring.dv.insert(ring.dv.end(), part.dv.begin(), part.dv.end());
  }
  EXPECT_EQ(mismatch(whole, inputs, ring, gradients()), "");
}

TEST_P(CaseNumerics, C70_HugeScores) {
  TANDEM_SKIP_IN_E4M3();
  const Problem problem = dense(1, 1, 1, 1, 1, 64, TANDEM_BF16);
  const double value = problem.dtype == TANDEM_FP16 ? 60000 : 133120;
  const Results results = both(problem, constant_inputs(problem, value, value, value, 1));
  expect_all(results.out, value);
  const double score = value * value * std::sqrt(static_cast<double>(problem.headdim));
  EXPECT_NEAR(results.lse[0], score, target().fixed() ? 1e-5 * score : 0);  // at headdim 64: 141767475200
  for (double dq : results.dq) EXPECT_TRUE(std::isfinite(dq));
}

// P is recomputed as exp(S - LSE), each in fp32: where scores are c^2 sqrt(headdim), a unit in the last place of the
// two moves every P by a factor of exp(+-ulp), at c = 1000 and headdim 32 by up to exp(0.5); a GPU, which takes exp2,
// has a product with log2(e) on each side besides. That factor is dV's tolerance. In dS the two terms dO . v and dO . O
// are equal, and cancel up to the rounding of a sum of headdim products.
TEST_P(CaseNumerics, C72_ConstantTensors) {
  TANDEM_SKIP_IN_E4M3();
  for (double c : {1.0, 10.0, 100.0, 1000.0}) {
    const Problem problem = dense(1, 512, 512, 1, 1, 32, TANDEM_BF16);
    Inputs inputs = random_inputs(problem, 72);
    for (std::vector<double>* values : {&inputs.q, &inputs.k, &inputs.v}) values->assign(values->size(), c);
    const Results results = both(problem, inputs);
    expect_near(results.out, std::vector<double>(results.out.size(), c), target().fixed() ? tolerance(c) : 0);
    if (!gradients()) continue;
    const size_t columns = static_cast<size_t>(problem.headdim_v);
    double dout_sum = 0;  // the largest sum of |dO| over a row
    for (size_t i = 0; i < 512; ++i) {
      double sum = 0;
      for (size_t n = 0; n < columns; ++n) sum += std::fabs(inputs.dout[i * columns + n]);
      dout_sum = std::max(dout_sum, sum);
    }
    const double units = target().fixed() ? 3 : 1;
    const double score = c * c * std::sqrt(static_cast<double>(problem.headdim));
    const double factor = std::exp(units * ulp(TANDEM_FP32, score));
    const double zero = factor * problem.scale() * c * cancelled(problem.headdim_v, c * dout_sum);
    for (double value : results.dq) ASSERT_NEAR(value, 0, zero) << c;
    for (double value : results.dk) ASSERT_NEAR(value, 0, zero) << c;
    const double rounding_of_p = target().fixed() ? ulp(problem.dtype, 1) : 1e-5;
    for (size_t n = 0; n < columns; ++n) {
      double expected = 0;
      double column_sum = 0;
      for (size_t i = 0; i < 512; ++i) {
        expected += inputs.dout[i * columns + n] / 512;
        column_sum += std::fabs(inputs.dout[i * columns + n]) / 512;
      }
      const double tolerance = (factor - 1 + rounding_of_p) * column_sum + ulp(problem.dtype, std::fabs(expected));
      for (size_t j = 0; j < 512; ++j) ASSERT_NEAR(results.dv[j * columns + n], expected, tolerance) << c;
    }
  }
}

// Judged by the largest error, not by each element's relative one: near 0 an element is the difference of terms that
// are ten times V, and its relative error says nothing.
TEST_P(CaseNumerics, C74_LargeValuesInHalfPrecision) {
  const Problem problem = packed({300, 500, 100}, {300, 500, 100}, 2, 2, 64, TANDEM_FP16);
  Inputs inputs = random_inputs(problem, 74);
  for (double& v : inputs.v) v = round_to(problem.dtype, 10 * v);
  const Results results = forward(problem, inputs);
  EXPECT_EQ(mismatch(problem, inputs, results, false), "");
}

TEST_P(CaseNumerics, C75_SumsBeyondTheRangeOfHalf) {
  TANDEM_SKIP_IN_E4M3();
  const Problem problem = dense(1, 3, 4096, 1, 1, 16, TANDEM_FP16);
  Inputs inputs = random_inputs(problem, 75);
  const double value = round_to(problem.dtype, 60000);
  inputs.v.assign(inputs.v.size(), value);
  expect_all(forward(problem, inputs).out, value);
}

TEST_P(CaseNumerics, C76_TileEdges) {
  // The reference has no tiles; the larger ones of a target's head dims take long, and are in tests/gpu.
  const bool only_small = backend() == TANDEM_BACKEND_REFERENCE || target().fixed();
  for (int64_t seqlen_q : {1, 7, 63, 64, 65, 127, 128, 129, 191, 196, 257, 1025}) {
    for (int64_t seqlen_k : {1, 7, 63, 64, 65, 127, 128, 129, 191, 196, 257, 1025}) {
      if (only_small && seqlen_q * seqlen_k > 65 * 65) continue;
      for (bool causal : {false, true}) {
        Problem problem = dense(1, seqlen_q, seqlen_k, 1, 1, 16);
        problem.causal = causal;
        expect_correct(problem, 76);
      }
    }
  }
}

TEST_P(CaseNumerics, C83_HeadDims) {
  for (int32_t dtype : dtypes({TANDEM_FP32, TANDEM_BF16})) {
    for (int64_t headdim : headdims({1, 8, 16, 40, 59, 64, 65, 72, 80, 96, 104, 128, 160, 192, 255, 256})) {
      Problem problem = dense(1, 20, 33, 2, 1, headdim, dtype);
      problem.causal = true;
      expect_correct(problem, 83);
    }
  }
}

TEST_P(CaseNumerics, C84_ValuesOfAnotherHeadDim) {
  for (const auto& [headdim, headdim_v] : {std::pair<int64_t, int64_t>{192, 128}, {64, 256}, {7, 250}, {256, 1}}) {
    Problem problem = dense(1, 40, 70, 2, 2, headdim, TANDEM_BF16);
    if (!target().fixed()) problem.headdim_v = headdim_v;
    expect_correct(problem, 84);
  }
}

TEST_P(CaseNumerics, C87_HeadsThatDoNotDivide) {
  for (int64_t nheads_k : {2, 0}) {
    HostTensor q({1, 4, 3, 8}, TANDEM_FP32), k({1, 4, nheads_k, 8}, TANDEM_FP32), out({1, 4, 3, 8}, TANDEM_FP32);
    tandem_forward_params params = {};
    params.struct_size = sizeof params;
    params.exec.backend = backend();
    params.q = q.view();
    params.k = params.v = k.view();
    params.out = out.view();
    EXPECT_EQ(tandem_forward(&params), TANDEM_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tandem_last_error()).find("nheads"), std::string::npos) << tandem_last_error();
  }
}

TEST_P(CaseDeterminism, C88_DeterministicBackward) {
  Problem windowed = dense(2, 150, 150, 4, 4, 64, TANDEM_FP16);
  windowed.has_window = true;
  windowed.window_left = 128;
  windowed.window_right = 0;
  Problem grouped = dense(1, 200, 200, 16, 2, 128, TANDEM_BF16);
  grouped.causal = true;
  for (Problem problem : {windowed, grouped, packed({70, 0, 130}, {70, 9, 130}, 4, 2, 64, TANDEM_BF16)}) {
    problem.deterministic = true;
    const Inputs inputs = random_inputs(problem, 88);
    const Results expected = both(problem, inputs);
    const int32_t runs = backend() == TANDEM_BACKEND_REFERENCE ? 1 : 12;  // the reference has one thread
    for (int32_t run = 0; run < runs; ++run) {
      problem.num_threads = run % 4;
      expect_same_bits(expected, both(problem, inputs));
    }
  }
}

TEST_P(CaseDeterminism, C89_DeterministicBackwardOfASmallProblem) {
  Problem problem = dense(1, 16, 16, 2, 1, 16, TANDEM_FP16);
  problem.causal = true;
  problem.deterministic = true;
  expect_correct(problem, 89);  // in a workspace with guard bands
}

TEST_P(CaseNumerics, C90_WrongOffsets) {
  Problem problem = packed({3, 4}, {3, 4}, 1, 1, 8);
  const Inputs inputs = random_inputs(problem, 90);
  for (const std::vector<int32_t>& offsets :
       {std::vector<int32_t>{5, 6, 7}, std::vector<int32_t>{0, 5, 2}, std::vector<int32_t>{0, 3, 768}}) {
    problem.cu_seqlens_k = offsets;
    problem.checked = true;
    Runner checked(problem, inputs, backend());
    EXPECT_EQ(checked.forward(), TANDEM_INVALID_ARGUMENT);
    EXPECT_NE(std::string(tandem_last_error()).find("cu_seqlens_k"), std::string::npos) << tandem_last_error();
    problem.checked = false;
    Runner unchecked(problem, inputs, backend());
    EXPECT_EQ(unchecked.forward(), TANDEM_OK);
    if (gradients()) {
      EXPECT_EQ(unchecked.backward(), TANDEM_OK);
    }
    EXPECT_EQ(unchecked.damage(), "");
  }
  problem.cu_seqlens_k = {0, 3};  // batch values, not batch + 1
  Runner too_few(problem, inputs, backend());
  EXPECT_EQ(too_few.forward(), TANDEM_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tandem_last_error()).find("cu_seqlens_k"), std::string::npos) << tandem_last_error();
}

TANDEM_ON_EACH_TARGET(CaseNumerics);
TANDEM_ON_TARGETS_WHERE(has_gradients, CaseGradients);
TANDEM_ON_TARGETS_WHERE(has_deterministic_gradients, CaseDeterminism);
TANDEM_ON_EACH_TARGET(CaseMerges);

}  // namespace
}  // namespace tandem::optest
