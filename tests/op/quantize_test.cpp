// tandem_quantize_fp8 on every backend, against its definition in double.
#include <random>

#include "backend_test.h"
#include "quantize_case.h"

namespace tandem::optest {
namespace {

class Quantize : public BackendTest {};
TANDEM_ON_TARGETS_WHERE(has_any_head_dims, Quantize);

std::vector<double> random_values(const QuantizeCase& test, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(test.rows() * test.nheads * test.headdim));
  for (double& value : values) value = normal(random);
  return values;
}

// Sylvester's doubling, and Paley's construction for 12 = 11 + 1 where the size has a factor of 3.
std::vector<std::vector<double>> hadamard(int64_t size) {
  std::vector<std::vector<double>> h = {{1}};
  if (size % 3 == 0) {
    bool square[11] = {};
    for (int n = 1; n < 11; ++n) square[n * n % 11] = true;
    h.assign(12, std::vector<double>(12, -1));
    for (int i = 0; i < 12; ++i) {
      for (int j = 0; j < 12; ++j) {
        if (i == 0 || i == j || (j > 0 && square[(i - j + 11) % 11]))
          h[static_cast<size_t>(i)][static_cast<size_t>(j)] = 1;
      }
    }
  }
  while (static_cast<int64_t>(h.size()) < size) {  // the Sylvester part is the inner one
    std::vector<std::vector<double>> doubled(2 * h.size(), std::vector<double>(2 * h.size()));
    for (size_t i = 0; i < doubled.size(); ++i) {
      for (size_t j = 0; j < doubled.size(); ++j) doubled[i][j] = h[i / 2][j / 2] * (i % 2 == 1 && j % 2 == 1 ? -1 : 1);
    }
    h = doubled;
  }
  return h;
}

// Bits of splitmix64, from its public definition.
double sign_of(uint64_t seed, int64_t column) {
  uint64_t state = seed;
  uint64_t output = 0;
  for (int64_t n = 0; n <= column / 64; ++n) {
    state += 0x9e3779b97f4a7c15;
    output = state;
    output = (output ^ (output >> 30)) * 0xbf58476d1ce4e5b9;
    output = (output ^ (output >> 27)) * 0x94d049bb133111eb;
    output ^= output >> 31;
  }
  return output >> (column % 64) & 1 ? -1 : 1;
}

class Definition {
 public:
  explicit Definition(const QuantizeCase& test) : test_(test) {
    if (!test.rotate) return;
    matrix_ = hadamard(test.headdim);
    for (std::vector<double>& line : matrix_) {
      for (size_t c = 0; c < line.size(); ++c) line[c] *= sign_of(test.seed, static_cast<int64_t>(c));
    }
  }

  // What is to be rounded.
  std::vector<double> row(const std::vector<double>& x, int64_t b, int64_t i, int64_t h) const {
    const auto begin = x.begin() + test_.x_index(b, i, h, 0);
    std::vector<double> values(begin, begin + test_.headdim);
    embed(b, i, values);
    return test_.rotate ? rotated(values) : values;
  }

 private:
  void embed(int64_t b, int64_t i, std::vector<double>& x) const {
    const int64_t offset = test_.rotary_offset.empty() ? 0 : test_.rotary_offset[static_cast<size_t>(b)];
    for (int64_t n = 0; n < test_.pairs; ++n) {
      const size_t entry = static_cast<size_t>((offset + i) * test_.pairs + n);
      const double cos = static_cast<float>(test_.cos[entry]);
      const double sin = static_cast<float>(test_.sin[entry]);
      const size_t first = static_cast<size_t>(test_.interleaved ? 2 * n : n);
      const size_t second = static_cast<size_t>(test_.interleaved ? 2 * n + 1 : test_.pairs + n);
      const double a = x[first], c = x[second];
      x[first] = a * cos - c * sin;
      x[second] = c * cos + a * sin;
    }
  }

  std::vector<double> rotated(const std::vector<double>& x) const {
    std::vector<double> result;
    for (const std::vector<double>& line : matrix_) {
      double sum = 0;
      for (size_t c = 0; c < x.size(); ++c) sum += line[c] * x[c];
      result.push_back(sum / std::sqrt(static_cast<double>(test_.headdim)));
    }
    return result;
  }

  const QuantizeCase& test_;
  std::vector<std::vector<double>> matrix_;  // H D
};

// Each scale is the largest magnitude of its group / 448, each element nearest to y / scale (but for the rounding of y
// itself in fp32), and what no row has is 0.
void expect_definition(const QuantizeCase& test, const Quantized& got) {
  ASSERT_EQ(got.error, "");
  const Definition definition(test);
  std::vector<double> scale(got.scale.size(), 0);
  std::vector<bool> written(got.out.size());
  const auto for_each_row = [&](auto visit) {
    for (int64_t b = 0; b < test.batch; ++b) {
      for (int64_t h = 0; h < test.nheads; ++h) {
        for (int64_t i = 0; i < test.length(b); ++i) visit(b, i, h, definition.row(got.x, b, i, h));
      }
    }
  };
  for_each_row([&](int64_t b, int64_t i, int64_t h, const std::vector<double>& y) {
    double& largest = scale[static_cast<size_t>(test.scale_index(b, i, h))];
    for (double value : y) {
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    }
  });
  for (size_t n = 0; n < scale.size(); ++n) {
    scale[n] = std::max(scale[n] / 448, 0x1p-126);
    ASSERT_NEAR(got.scale[n], scale[n], 2e-6 * scale[n]) << "scale " << n;
  }
  for_each_row([&](int64_t b, int64_t i, int64_t h, const std::vector<double>& y) {
    for (size_t c = 0; c < y.size(); ++c) {
      const size_t index = static_cast<size_t>(test.out_index(b, i, h, static_cast<int64_t>(c)));
      written[index] = true;
      const double wanted = y[c] / got.scale[static_cast<size_t>(test.scale_index(b, i, h))];
      if (!std::isfinite(wanted)) {
        EXPECT_TRUE(std::isnan(got.out[index]));
        continue;
      }
      const double nearest = ulp(TANDEM_E4M3, std::fabs(got.out[index])) / 2;
      ASSERT_NEAR(got.out[index], wanted, nearest + 448 * 1e-6)
          << "sequence " << b << ", row " << i << ", head " << h << ", column " << c;
    }
  });
  for (size_t n = 0; n < written.size(); ++n) {
    if (written[n]) continue;
    ASSERT_EQ(got.out[n], 0) << "element " << n << ", which no row has";
  }
}

QuantizeCase dense_case(int64_t batch, int64_t seqlen, int64_t nheads, int64_t headdim) {
  QuantizeCase test;
  test.batch = batch;
  test.seqlen = seqlen;
  test.nheads = nheads;
  test.headdim = headdim;
  return test;
}

QuantizeCase packed_case(std::vector<int32_t> cu_seqlens, int64_t total, int64_t nheads, int64_t headdim) {
  QuantizeCase test = dense_case(static_cast<int64_t>(cu_seqlens.size()) - 1, 0, nheads, headdim);
  test.packed = true;
  test.total = total;
  test.cu_seqlens = std::move(cu_seqlens);
  return test;
}

void add_rotary_tables(QuantizeCase& test, int64_t positions, int64_t pairs) {
  test.pairs = pairs;
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t n = 0; n < pairs; ++n) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(n) / pairs);
      test.cos.push_back(std::cos(angle));
      test.sin.push_back(std::sin(angle));
    }
  }
}

TEST_P(Quantize, EveryGranularityTypeAndLayout) {
  for (const Granularity granularity : {Granularity::kTensor, Granularity::kHead, Granularity::kBlock}) {
    for (const int32_t dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
      for (const bool transposed : {false, true}) {
        QuantizeCase test = dense_case(2, 131, 3, 40);
        test.granularity = granularity;
        test.dtype = dtype;
        test.transposed = transposed;
        test.seqused = {131, 70};
        test.x_layout.order = {0, 2, 1, 3};
        test.x_layout.padding = 3;
        test.out_layout.padding = 5;
        expect_definition(test, quantize(test, random_values(test, 1), backend()));

        QuantizeCase packed = packed_case({0, 0, 5, 270, 275, 292}, 300, 2, 48);
        packed.granularity = granularity;
        packed.dtype = dtype;
        packed.transposed = transposed;
        expect_definition(packed, quantize(packed, random_values(packed, 2), backend()));
        packed.seqused = {0, 2, 200, 5, 16};
        expect_definition(packed, quantize(packed, random_values(packed, 3), backend()));
      }
    }
  }
}

TEST_P(Quantize, EverySequenceLengthAroundGroupsAndBlocks) {
  for (const int64_t seqlen : {0, 1, 15, 16, 17, 31, 127, 128, 129, 255, 256, 257}) {
    for (const bool transposed : {false, true}) {
      QuantizeCase test = dense_case(1, seqlen, 2, 16);
      test.transposed = transposed;
      expect_definition(test, quantize(test, random_values(test, 4), backend()));
    }
  }
  expect_definition(dense_case(0, 9, 2, 16), quantize(dense_case(0, 9, 2, 16), {}, backend()));
}

TEST_P(Quantize, RotationOfEveryHeadDim) {
  for (const int64_t headdim : {16, 24, 32, 48, 64, 96, 128, 192, 256}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1234567}, ~uint64_t{0}}) {
      QuantizeCase test = dense_case(1, 130, 1, headdim);
      test.rotate = true;
      test.seed = seed;
      test.dtype = TANDEM_FP32;
      SCOPED_TRACE(headdim);
      expect_definition(test, quantize(test, random_values(test, 5), backend()));
    }
  }
}

// Unit vectors show the columns of the rotation itself. It is orthogonal, so that Q.K stays what it is.
TEST_P(Quantize, RotationIsOrthogonal) {
  for (const int64_t headdim : {64, 96, 128, 192, 256}) {
    QuantizeCase test = dense_case(1, headdim, 1, headdim);
    test.rotate = true;
    test.seed = 99;
    std::vector<double> identity(static_cast<size_t>(headdim * headdim));
    for (int64_t n = 0; n < headdim; ++n) identity[static_cast<size_t>(n * headdim + n)] = 1;
    const Quantized got = quantize(test, identity, backend());
    ASSERT_EQ(got.error, "");
    int64_t negative = 0;
    for (int64_t a = 0; a < headdim; ++a) {
      for (int64_t b = 0; b <= a; ++b) {
        double product = 0;
        for (int64_t c = 0; c < headdim; ++c) {
          product += got.out[static_cast<size_t>(a * headdim + c)] * got.out[static_cast<size_t>(b * headdim + c)];
        }
        EXPECT_EQ(product, a == b ? 448.0 * 448.0 * static_cast<double>(headdim) : 0);
      }
      negative += got.out[static_cast<size_t>(a * headdim)] < 0;
    }
    for (double value : got.out) ASSERT_EQ(std::fabs(value), 448);
    EXPECT_NEAR(static_cast<double>(negative), static_cast<double>(headdim) / 2, static_cast<double>(headdim) / 4);
  }
}

TEST_P(Quantize, RotationSpreadsAnOutlier) {
  QuantizeCase test = dense_case(1, 128, 1, 128);
  std::vector<double> x = random_values(test, 6);
  for (size_t n = 0; n < x.size(); n += 128) x[n + 7] = 100;
  const Quantized plain = quantize(test, x, backend());
  test.rotate = true;
  const Quantized rotated = quantize(test, x, backend());
  EXPECT_NEAR(plain.scale[0], 100.0 / 448, 0.01);
  EXPECT_LT(rotated.scale[0], 20.0 / 448);
}

TEST_P(Quantize, RotaryEmbedding) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t pairs : {8, 32}) {
      for (const bool rotate : {false, true}) {
        QuantizeCase test = dense_case(2, 133, 2, 64);
        add_rotary_tables(test, 200, pairs);
        test.interleaved = interleaved;
        test.rotate = rotate;
        test.rotary_offset = {0, 67};
        expect_definition(test, quantize(test, random_values(test, 7), backend()));
        QuantizeCase packed = packed_case({0, 40, 41, 180}, 190, 1, 64);
        add_rotary_tables(packed, 160, pairs);
        packed.interleaved = interleaved;
        packed.rotate = rotate;
        packed.rotary_offset = {120, 3, 0};
        expect_definition(packed, quantize(packed, random_values(packed, 8), backend()));
      }
    }
  }
}

TEST_P(Quantize, PositionsAreClampedToTheTable) {
  QuantizeCase test = dense_case(1, 6, 1, 16);
  add_rotary_tables(test, 4, 8);
  const std::vector<double> x = random_values(test, 9);
  const Quantized got = quantize(test, x, backend());
  ASSERT_EQ(got.error, "");
  QuantizeCase longer = test;
  for (int64_t n = 0; n < 2 * 8; ++n) {
    longer.cos.push_back(test.cos[static_cast<size_t>(3 * 8 + n % 8)]);
    longer.sin.push_back(test.sin[static_cast<size_t>(3 * 8 + n % 8)]);
  }
  EXPECT_TRUE(same_bits(got.out, quantize(longer, x, backend()).out));
  test.checked = true;
  EXPECT_EQ(quantize(test, x, backend()).status, TANDEM_INVALID_ARGUMENT);
}

TEST_P(Quantize, RowsBeyondTheScalesOfAPackedSequenceUseTheLast) {
  QuantizeCase test = packed_case({0, 300, 340}, 340, 2, 32);
  test.blocks = 2;
  expect_definition(test, quantize(test, random_values(test, 10), backend()));
  test.checked = true;
  const Quantized refused = quantize(test, random_values(test, 10), backend());
  EXPECT_EQ(refused.error, "scale.shape[2] is 2 but the longest sequence has 3 blocks of 128 rows");
}

TEST_P(Quantize, HugeAndTinyValuesAndZeros) {
  for (const double magnitude : {0.0, 0x1p-130, 0x1p-120, 1e-30, 1e30, 3e38}) {
    QuantizeCase test = dense_case(1, 20, 1, 32);
    std::vector<double> x = random_values(test, 11);
    for (double& value : x) value = std::clamp(value / 4, -1.0, 1.0) * magnitude;
    expect_definition(test, quantize(test, x, backend()));
  }
}

TEST_P(Quantize, WhatIsNotFiniteBecomesNanAndCountsForNoScale) {
  QuantizeCase test = dense_case(1, 140, 1, 32);
  std::vector<double> x = random_values(test, 12);
  x[5] = kNan;
  x[40] = kInfinity;
  x[4300] = -kInfinity;
  expect_definition(test, quantize(test, x, backend()));
}

TEST_P(Quantize, StorageThatNoRowHasIsNotRead) {  // [7]
  for (const Granularity granularity : {Granularity::kTensor, Granularity::kHead, Granularity::kBlock}) {
    QuantizeCase test = packed_case({0, 20, 60}, 90, 2, 32);
    test.seqused = {15, 33};
    test.granularity = granularity;
    test.rotate = true;
    std::vector<double> x = random_values(test, 13);
    const Quantized clean = quantize(test, x, backend());
    for (int64_t row = 0; row < 90; ++row) {
      if (row < 15 || (row >= 20 && row < 53)) continue;
      std::fill_n(x.begin() + row * 64, 64, row % 2 == 0 ? kNan : 1e30);
    }
    const Quantized poisoned = quantize(test, x, backend());
    EXPECT_TRUE(same_bits(clean.out, poisoned.out));
    EXPECT_TRUE(same_bits(clean.scale, poisoned.scale));
  }
}

TEST_P(Quantize, ThreadsChangeNoBit) {  // [12]
  for (const Granularity granularity : {Granularity::kTensor, Granularity::kHead, Granularity::kBlock}) {
    QuantizeCase test = dense_case(2, 700, 3, 96);
    test.granularity = granularity;
    test.rotate = true;
    const std::vector<double> x = random_values(test, 14);
    test.num_threads = 1;
    const Quantized one = quantize(test, x, backend());
    for (int32_t threads : {2, 3, 7}) {
      test.num_threads = threads;
      const Quantized several = quantize(test, x, backend());
      EXPECT_TRUE(same_bits(one.out, several.out));
      EXPECT_TRUE(same_bits(one.scale, several.scale));
    }
  }
}

// A sequence's blocks count from its own start, whatever lies before it.
TEST_P(Quantize, ASequenceDependsOnItselfAlone) {
  QuantizeCase alone = packed_case({0, 200}, 200, 1, 64);
  alone.transposed = true;
  const std::vector<double> x = random_values(alone, 15);
  const Quantized single = quantize(alone, x, backend());
  QuantizeCase together = packed_case({0, 77, 277}, 277, 1, 64);
  together.transposed = true;
  std::vector<double> both = random_values(together, 16);
  std::copy(x.begin(), x.end(), both.begin() + 77 * 64);
  const Quantized second = quantize(together, both, backend());
  for (int64_t n = 0; n < 2; ++n)
    EXPECT_EQ(second.scale[static_cast<size_t>(2 + n)], single.scale[static_cast<size_t>(n)]);
  for (int64_t i = 0; i < 200; ++i) {
    for (int64_t c = 0; c < 64; ++c) {
      ASSERT_EQ(second.out[static_cast<size_t>(together.out_index(1, i, 0, c))],
                single.out[static_cast<size_t>(alone.out_index(0, i, 0, c))]);
    }
  }
}

}  // namespace
}  // namespace tandem::optest
