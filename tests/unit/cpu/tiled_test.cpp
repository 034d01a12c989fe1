// The tiled backend against attention written out as double loops, on every instruction set; and what is its own:
// scratch sizes, and two ways through the backward that give the same bits. (tests/op holds the tests of the contract.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/backend.h"
#include "tests/unit/cpu/each_target.h"

namespace tandem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One dense fp32 problem in (batch, seqlen, heads, headdim) with its tensors; outputs start as NaN.
struct Case {
  int64_t batch = 1, seqlen_q = 1, seqlen_k = 1, nheads_q = 1, nheads_k = 1, headdim = 1, headdim_v = 1;
  bool causal = false;
  int num_threads = 1;

  std::vector<float> q{}, k{}, v{}, out{}, lse{}, dout{}, dq{}, dk{}, dv{};

  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto values = [&](int64_t count) {
      std::vector<float> result(static_cast<size_t>(count));
      for (float& x : result) x = normal(random);
      return result;
    };
    q = values(batch * seqlen_q * nheads_q * headdim);
    k = values(batch * seqlen_k * nheads_k * headdim);
    v = values(batch * seqlen_k * nheads_k * headdim_v);
    dout = values(batch * seqlen_q * nheads_q * headdim_v);
    const float nan = std::nanf("");
    out.assign(dout.size(), nan);
    lse.assign(static_cast<size_t>(batch * nheads_q * seqlen_q), nan);
    dq.assign(q.size(), nan);
    dk.assign(k.size(), nan);
    dv.assign(v.size(), nan);
  }

  AttentionProblem problem(bool backward) {
    const auto tensor = [](std::vector<float>& data, int64_t rows, int64_t heads, int64_t columns) {
      return Tensor{data.data(), DType::kFp32, rows * heads * columns, heads * columns, columns};
    };
    AttentionProblem p;
    p.backward = backward;
    p.batch = batch;
    p.nheads_q = nheads_q;
    p.nheads_k = nheads_k;
    p.headdim = headdim;
    p.headdim_v = headdim_v;
    p.seqlen_q = p.total_q = seqlen_q;
    p.seqlen_k = p.total_k = seqlen_k;
    p.dtype = p.out_dtype = DType::kFp32;
    p.softmax_scale = 1 / std::sqrt(static_cast<double>(headdim));
    p.mask.causal = causal;
    p.q = tensor(q, seqlen_q, nheads_q, headdim);
    p.k = tensor(k, seqlen_k, nheads_k, headdim);
    p.v = tensor(v, seqlen_k, nheads_k, headdim_v);
    p.out = tensor(out, seqlen_q, nheads_q, headdim_v);
    p.lse = {lse.data(), DType::kFp32, nheads_q * seqlen_q, seqlen_q, 1};
    if (backward) {
      p.dout = tensor(dout, seqlen_q, nheads_q, headdim_v);
      p.dq = tensor(dq, seqlen_q, nheads_q, headdim);
      p.dk = tensor(dk, seqlen_k, nheads_k, headdim);
      p.dv = tensor(dv, seqlen_k, nheads_k, headdim_v);
    }
    p.exec.num_threads = num_threads;
    return p;
  }
};

// In a workspace of exactly the size that was asked for, full of NaN, with a guard behind it.
void run(AttentionProblem problem) {
  const Workspace need = kTiledBackend.workspace(problem);
  constexpr size_t kGuard = 256;
  std::vector<unsigned char> storage(need.bytes + need.alignment + kGuard, 0xFF);
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  const size_t begin = (need.alignment - address % need.alignment) % need.alignment;
  problem.exec.workspace = storage.data() + begin;
  problem.exec.workspace_bytes = need.bytes;
  ASSERT_TRUE(kTiledBackend.supports(problem).is_ok());
  ASSERT_TRUE(kTiledBackend.run(problem).is_ok());
  for (size_t i = begin + need.bytes; i < storage.size(); ++i) ASSERT_EQ(storage[i], 0xFF) << "past the workspace";
}

void run_both(Case& c) {
  run(c.problem(false));
  run(c.problem(true));
}

// Attention and its gradients from the formulas in tandem.h.
struct Expected {
  std::vector<double> out, lse, dq, dk, dv;
};

Expected expected_of(const Case& c) {
  const auto n = [](int64_t x) { return static_cast<size_t>(x); };
  Expected e{std::vector<double>(c.out.size()), std::vector<double>(c.lse.size()), std::vector<double>(c.dq.size()),
             std::vector<double>(c.dk.size()), std::vector<double>(c.dv.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(c.headdim));
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.nheads_q; ++h) {
      const int64_t hk = h / (c.nheads_q / c.nheads_k);
      for (int64_t i = 0; i < c.seqlen_q; ++i) {
        const size_t qi = n(((b * c.seqlen_q + i) * c.nheads_q + h) * c.headdim);
        const size_t oi = n(((b * c.seqlen_q + i) * c.nheads_q + h) * c.headdim_v);
        const auto kj = [&](int64_t j) { return n(((b * c.seqlen_k + j) * c.nheads_k + hk) * c.headdim); };
        const auto vj = [&](int64_t j) { return n(((b * c.seqlen_k + j) * c.nheads_k + hk) * c.headdim_v); };
        const int64_t keys =
            c.causal ? std::clamp<int64_t>(i + 1 + c.seqlen_k - c.seqlen_q, 0, c.seqlen_k) : c.seqlen_k;
        std::vector<double> p(n(keys));
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          double s = 0;
          for (size_t d = 0; d < n(c.headdim); ++d) s += double{c.q[qi + d]} * double{c.k[kj(j) + d]};
          p[n(j)] = std::exp(s * scale);
          sum += p[n(j)];
        }
        e.lse[n((b * c.nheads_q + h) * c.seqlen_q + i)] = keys > 0 ? std::log(sum) : -kInfinity;
        double delta = 0;
        for (size_t d = 0; d < n(c.headdim_v); ++d) {
          for (int64_t j = 0; j < keys; ++j) e.out[oi + d] += p[n(j)] / sum * double{c.v[vj(j) + d]};
          delta += e.out[oi + d] * double{c.dout[oi + d]};
        }
        for (int64_t j = 0; j < keys; ++j) {
          double dp = 0;
          for (size_t d = 0; d < n(c.headdim_v); ++d) {
            dp += double{c.dout[oi + d]} * double{c.v[vj(j) + d]};
            e.dv[vj(j) + d] += p[n(j)] / sum * double{c.dout[oi + d]};
          }
          const double ds = p[n(j)] / sum * (dp - delta) * scale;
          for (size_t d = 0; d < n(c.headdim); ++d) {
            e.dq[qi + d] += ds * double{c.k[kj(j) + d]};
            e.dk[kj(j) + d] += ds * double{c.q[qi + d]};
          }
        }
      }
    }
  }
  return e;
}

void expect_close(const char* name, const std::vector<float>& values, const std::vector<double>& expected) {
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::isinf(x) ? 0 : std::abs(x));
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(double{values[i]}, expected[i]) << name << " element " << i;
    } else {
      ASSERT_NEAR(double{values[i]}, expected[i], 4e-6 * largest) << name << " element " << i;
    }
  }
}

void check(Case c, unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  c.fill(seed);
  const Expected expected = expected_of(c);
  run_both(c);
  expect_close("out", c.out, expected.out);
  expect_close("lse", c.lse, expected.lse);
  expect_close("dq", c.dq, expected.dq);
  expect_close("dk", c.dk, expected.dk);
  expect_close("dv", c.dv, expected.dv);
}

TEST(Tiled, EqualsDoubleLoops) {
  for_each_target([] {
    for (const bool causal : {false, true}) {
      check({1, 1, 1, 1, 1, 1, 1, causal}, 1);
      check({2, 5, 3, 2, 1, 3, 7, causal}, 2);       // causal: the first rows see no key
      check({1, 129, 67, 1, 1, 16, 16, causal}, 3);  // tile edges
      check({1, 300, 300, 2, 2, 65, 40, causal, 2}, 4);
      check({2, 1, 190, 6, 2, 33, 17, causal, 2}, 5);  // decoding: the heads of a group share a tile
    }
  });
}

TEST(Tiled, WideHeads) {
  for_each_target([] { check({1, 70, 70, 1, 1, 256, 200, true}, 6); });
}

// With 1 thread the backward takes each key head as a whole; with 5 threads and 2 key heads, dK, dV and dQ apart.
TEST(Tiled, BackwardHasTheSameBitsBothWaysAndForEveryNumberOfThreads) {
  for (const bool causal : {false, true}) {
    Case one{1, 1100, 1300, 4, 2, 40, 24, causal, 1};
    one.fill(7);
    run_both(one);
    for (const int threads : {2, 5, std::numeric_limits<int>::max()}) {
      Case many = one;
      many.num_threads = threads;
      many.fill(7);
      run_both(many);
      EXPECT_EQ(std::memcmp(one.out.data(), many.out.data(), one.out.size() * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(one.dq.data(), many.dq.data(), one.dq.size() * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(one.dk.data(), many.dk.data(), one.dk.size() * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(one.dv.data(), many.dv.data(), one.dv.size() * sizeof(float)), 0);
    }
  }
}

// max_seqlen_k sizes scratch but is never trusted.
TEST(Tiled, AWrongLengthHintChangesNothing) {
  Case honest{1, 200, 1500, 1, 1, 32, 32, false, 1};
  honest.fill(8);
  run_both(honest);
  Case wrong = honest;
  wrong.fill(8);
  AttentionProblem problem = wrong.problem(true);
  problem.out.data = honest.out.data();
  problem.lse.data = honest.lse.data();
  std::vector<int32_t> offsets_q{0, 200}, offsets_k{0, 1500};
  problem.packed = true;
  problem.cu_seqlens_q = {offsets_q.data(), DType::kInt32, 1};
  problem.cu_seqlens_k = {offsets_k.data(), DType::kInt32, 1};
  problem.max_seqlen_k = 3;
  run(problem);
  EXPECT_EQ(std::memcmp(honest.dq.data(), wrong.dq.data(), honest.dq.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(honest.dk.data(), wrong.dk.data(), honest.dk.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(honest.dv.data(), wrong.dv.data(), honest.dv.size() * sizeof(float)), 0);
}

// One key: P is 1 whatever the score, so dQ and dK are 0, to the last bit.
TEST(Tiled, GradientsOfASingleKeyAreExactlyZero) {
  for_each_target([] {
    Case c{1, 9, 1, 3, 1, 24, 50};
    c.fill(9);
    run_both(c);
    for (const float x : c.dq) EXPECT_EQ(x, 0);
    for (const float x : c.dk) EXPECT_EQ(x, 0);
  });
}

TEST(Tiled, WorkspaceIsSmall) {
  constexpr uint64_t kMegabyte = 1 << 20;
  for (const int64_t headdim : {64, 128, 256}) {
    for (const int threads : {2, 8}) {
      Case c{1, 16384, 16384, 16, 16, headdim, headdim, false, threads};
      EXPECT_LT(kTiledBackend.workspace(c.problem(false)).bytes, 1 * kMegabyte * static_cast<uint64_t>(threads));
      EXPECT_LT(kTiledBackend.workspace(c.problem(true)).bytes, 60 * kMegabyte) << headdim << " " << threads;
    }
  }
  Case decode{1, 1, 32768, 32, 8, 128, 128, false, 2};
  EXPECT_LT(kTiledBackend.workspace(decode.problem(false)).bytes, kMegabyte);
  Case tiny{1, 4, 4, 1, 1, 8, 8, false, 1};
  EXPECT_LT(kTiledBackend.workspace(tiny.problem(false)).bytes, 8192u);
}

TEST(Tiled, RefusesE5m2InWords) {
  Case c;
  AttentionProblem problem = c.problem(false);
  problem.dtype = DType::kE4m3;
  EXPECT_TRUE(kTiledBackend.supports(problem).is_ok());
  problem.dtype = DType::kE5m2;
  const Status status = kTiledBackend.supports(problem);
  EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED);
  EXPECT_EQ(status.message(), "q.dtype is e5m2; of the fp8 types, attention takes e4m3 only");
}

TEST(Tiled, DescriptionNamesInstructionSetAndThreads) {
  for_each_target([] {
    const std::string text = kTiledBackend.description(0);
    EXPECT_NE(text.find("lanes of fp32"), std::string::npos) << text;
    EXPECT_NE(text.find("thread"), std::string::npos) << text;
  });
}

// C13: two parts of one row each. An empty part counts for nothing, whatever its O holds.
TEST(TiledMerge, PartsOfOneRow) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> parts(4), lses(2), out(2), lse(1);
  MergeProblem p;
  p.parts = 2;
  p.batch = p.rows = p.nheads = 1;
  p.headdim_v = 2;
  p.out_partial = {parts.data(), DType::kFp32, 2, 2, 2};
  p.out_part_stride = 2;
  p.lse_partial = {lses.data(), DType::kFp32, 1, 1, 1};
  p.lse_part_stride = 1;
  p.out = {out.data(), DType::kFp32, 2, 2, 2};
  p.lse = {lse.data(), DType::kFp32, 1, 1, 1};
  const auto merge = [&](std::vector<float> part_values, std::vector<float> part_lses) {
    std::copy(part_values.begin(), part_values.end(), parts.begin());
    std::copy(part_lses.begin(), part_lses.end(), lses.begin());
    out = {nan, nan};
    lse = {nan};
    ASSERT_TRUE(kTiledBackend.supports_merge(p).is_ok());
    ASSERT_TRUE(kTiledBackend.run_merge(p).is_ok());
  };
  merge({nan, nan, 0, 0}, {-infinity, -infinity});
  EXPECT_EQ(out, std::vector<float>({0, 0}));
  EXPECT_EQ(lse[0], -infinity);
  merge({nan, nan, 0.1f, -3.3f}, {-infinity, 1.7f});
  EXPECT_EQ(out, std::vector<float>({0.1f, -3.3f}));
  EXPECT_EQ(lse[0], 1.7f);
  merge({3, 0, 6, 0}, {1, 2});
  EXPECT_NEAR(lse[0], 2.3132617, 1e-6);
  EXPECT_NEAR(out[0], (3 * std::exp(1.0) + 6 * std::exp(2.0)) / (std::exp(1.0) + std::exp(2.0)), 1e-6);
  std::vector<float> sink{0};
  p.sink = {sink.data(), DType::kFp32, 1};
  merge({nan, nan, 4, 8}, {-infinity, 0});
  EXPECT_EQ(out, std::vector<float>({2, 4}));  // weights 1 and, for the sink, 1
  EXPECT_NEAR(lse[0], std::log(2.0), 1e-7);
  merge({nan, nan, nan, nan}, {-infinity, -infinity});
  EXPECT_EQ(out, std::vector<float>({0, 0}));
  EXPECT_EQ(lse[0], 0);  // the sink's
}

}  // namespace
}  // namespace tandem
