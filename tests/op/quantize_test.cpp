// tandem_quantize_fp8 on every backend, against its definition in double.
#include <cstdlib>

#include "backend_test.h"
#include "quantize_definition.h"

namespace tandem::optest {
namespace {

class Quantize : public BackendTest {
 protected:
  std::vector<int32_t> input_types() const {
    if (target().fp32_inputs) return {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};
    return {TANDEM_BF16, TANDEM_FP16};
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Quantize);
INSTANTIATE_TEST_SUITE_P(Each, Quantize, ::testing::ValuesIn(quantize_targets()), target_test_name);

void expect_definition(const QuantizeCase& test, const Quantized& got) {
  EXPECT_EQ(definition_fault(test, got), "");
}

TEST_P(Quantize, EveryGranularityTypeAndLayout) {
  for (const Granularity granularity : {Granularity::kTensor, Granularity::kHead, Granularity::kBlock}) {
    for (const int32_t dtype : input_types()) {
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
  for (const int64_t headdim : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1234567}, ~uint64_t{0}}) {
      QuantizeCase test = dense_case(1, 130, 1, headdim);
      test.rotate = true;
      test.seed = seed;
      test.dtype = input_types().back();
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

// TANDEM_TEST_SEED and TANDEM_TEST_COUNT change which and how many.
TEST_P(Quantize, RandomProblems) {
  const char* seed_text = std::getenv("TANDEM_TEST_SEED");
  const char* count_text = std::getenv("TANDEM_TEST_COUNT");
  const uint64_t first = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 4000;
  const uint64_t count = count_text != nullptr ? std::strtoull(count_text, nullptr, 10) : 100;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    const QuantizeCase test = random_quantize_case(seed, input_types());
    SCOPED_TRACE("again: TANDEM_TEST_SEED=" + std::to_string(seed) +
                 " TANDEM_TEST_COUNT=1 and --gtest_filter=*Quantize.RandomProblems*");
    expect_definition(test, quantize(test, random_values(test, seed), backend()));
  }
}

}  // namespace
}  // namespace tandem::optest
