// The quantising kernels' own sources, run in the model at the edges of their blocks, against the definition in double.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "float_types.h"
#include "quantize/launch.h"
#include "quantize_definition.h"

namespace tandem::model {
namespace {

using optest::dense_case;
using optest::Granularity;
using optest::packed_case;
using optest::QuantizeCase;
using optest::Quantized;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Granularity kGranularities[] = {Granularity::kTensor, Granularity::kHead, Granularity::kBlock};

// NaN in rows of no sequence.
std::vector<double> values_of(const QuantizeCase& test, uint64_t seed) {
  std::vector<double> x = random_values(test, seed);
  std::vector<bool> is_used(static_cast<size_t>(test.rows()));
  for (int64_t b = 0; b < test.batch; ++b) {
    for (int64_t i = 0; i < test.length(b); ++i) {
      is_used[static_cast<size_t>(test.x_index(b, i, 0, 0) / test.nheads / test.headdim)] = true;
    }
  }
  const auto width = static_cast<size_t>(test.nheads * test.headdim);
  for (size_t n = 0; n < x.size(); ++n) {
    if (!is_used[n / width]) x[n] = kNan;
  }
  return x;
}

void expect_right(const QuantizeCase& test, uint64_t seed = 1, int most_blocks = 1 << 20) {
  QuantizeOptions options;
  options.machine = options_for(seed);
  options.most_blocks = most_blocks;
  EXPECT_EQ(definition_fault(test, quantize_in_model(test, values_of(test, seed), options)), "")
      << "headdim " << test.headdim << ", seed " << seed;
}

// Two sequences, one with unused rows; a row more than a block.
QuantizeCase dense(int64_t headdim, int32_t dtype = TANDEM_BF16) {
  QuantizeCase test = dense_case(2, 130, 2, headdim);
  test.dtype = dtype;
  test.seqused = {130, 21};
  return test;
}

// Empty and short sequences, gaps before, between and after them, and one of two blocks.
QuantizeCase packed(int64_t headdim, int32_t dtype = TANDEM_BF16) {
  QuantizeCase test = packed_case({3, 3, 20, 160, 163}, 170, 1, headdim);
  test.dtype = dtype;
  test.seqused = {0, 17, 129, 2};
  return test;
}

class QuantizeInstance : public testing::TestWithParam<std::tuple<int64_t, int32_t>> {
 protected:
  int64_t headdim() const { return std::get<0>(GetParam()); }
  int32_t dtype() const { return std::get<1>(GetParam()); }
  // Of the instance, dense and packed, with each granularity.
  template <typename Change>
  void expect_all_right(const Change& change) const {
    uint64_t seed = 0;
    for (const Granularity granularity : kGranularities) {
      for (QuantizeCase test : {dense(headdim(), dtype()), packed(headdim(), dtype())}) {
        test.granularity = granularity;
        change(test);
        expect_right(test, ++seed);
      }
    }
  }
};

TEST_P(QuantizeInstance, RowsAsTheyAre) {
  expect_all_right([](QuantizeCase&) {});
}

TEST_P(QuantizeInstance, Transposed) {
  expect_all_right([](QuantizeCase& test) { test.transposed = true; });
}

TEST_P(QuantizeInstance, Rotated) {
  expect_all_right([](QuantizeCase& test) {
    test.rotate = true;
    test.seed = 12345;
  });
}

TEST_P(QuantizeInstance, Turned) {
  bool interleaved = false;
  expect_all_right([&](QuantizeCase& test) {
    test.interleaved = interleaved = !interleaved;
    test.rotary_offset.assign(static_cast<size_t>(test.batch), 7);
    add_rotary_tables(test, 150, interleaved ? headdim() / 4 : headdim() / 2);
  });
}

TEST_P(QuantizeInstance, TurnedAndRotated) {
  bool interleaved = true;
  expect_all_right([&](QuantizeCase& test) {
    test.rotate = true;
    test.interleaved = interleaved = !interleaved;
    test.table_dtype = interleaved ? test.dtype : int32_t{TANDEM_FP32};
    add_rotary_tables(test, 150, headdim() / 2);
  });
}

std::string instance_name(const testing::TestParamInfo<std::tuple<int64_t, int32_t>>& info) {
  return std::string(tandem_dtype_name(std::get<1>(info.param))) + "_" + std::to_string(std::get<0>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Bf16, QuantizeInstance,
                         testing::Combine(testing::Values(64, 96, 128, 192, 256), testing::Values(TANDEM_BF16)),
                         instance_name);
INSTANTIATE_TEST_SUITE_P(Fp16, QuantizeInstance,
                         testing::Combine(testing::Values(64, 192), testing::Values(TANDEM_FP16)), instance_name);

// Head dims that run inside an instance, and those of the narrow kernel.
TEST(QuantizeModel, EveryKindOfHeadDim) {
  for (const int64_t headdim : {1, 7, 8, 12, 16, 24, 32, 40, 48, 72, 104, 136, 200, 250}) {
    for (const bool transposed : {false, true}) {
      QuantizeCase test = packed(headdim);
      test.transposed = transposed;
      expect_right(test, 3);
    }
    if (headdim > 48 || headdim == 7 || headdim == 40) continue;
    QuantizeCase test = packed(headdim, TANDEM_FP16);
    test.rotate = true;
    expect_right(test, 4);
    if (headdim == 1) continue;
    add_rotary_tables(test, 20, headdim / 4 + 1);  // positions are clamped
    test.cos.resize(static_cast<size_t>(140 * test.pairs), 0.5);
    test.sin.resize(static_cast<size_t>(140 * test.pairs), -0.5);
    expect_right(test, 5);
  }
}

TEST(QuantizeModel, LengthsAroundGroupsAndBlocks) {
  for (const int64_t seqlen : {0, 1, 15, 16, 17, 127, 128, 129, 256, 257}) {
    for (const bool transposed : {false, true}) {
      QuantizeCase test = dense_case(1, seqlen, 1, 64);
      test.transposed = transposed;
      expect_right(test);
    }
  }
  for (const Granularity granularity : kGranularities) {
    for (const bool transposed : {false, true}) {
      QuantizeCase test = packed_case({0, 128, 256, 256, 272, 279}, 300, 1, 64);
      test.granularity = granularity;
      test.transposed = transposed;
      expect_right(test);
      QuantizeCase nothing = packed_case({0, 0, 0}, 0, 1, 64);
      nothing.granularity = granularity;
      nothing.transposed = transposed;
      expect_right(nothing);
    }
  }
}

// Rows of the tensors at odd places, as only the narrow kernel takes them; wide rows with gaps between.
TEST(QuantizeModel, Layouts) {
  for (const int64_t padding : {0, 3, 8}) {
    for (const bool transposed : {false, true}) {
      QuantizeCase test = dense(64);
      test.transposed = transposed;
      test.x_layout.padding = padding;
      test.x_layout.order = {0, 2, 1, 3};
      test.out_layout.padding = 2 * padding;
      test.rotate = !transposed;
      expect_right(test, 6);
      test.x_layout.offset = padding;
      test.x_layout.slices = 3;
      test.x_layout.slice = 1;
      expect_right(test, 7);
    }
  }
}

TEST(QuantizeModel, BlocksTakeSeveralItems) {
  for (const Granularity granularity : kGranularities) {
    for (const bool rotate : {false, true}) {
      QuantizeCase test = packed(96);
      test.nheads = 3;
      test.granularity = granularity;
      test.rotate = rotate;
      expect_right(test, 8, 2);
      test.transposed = !rotate;
      expect_right(test, 9, 1);
      test.headdim = 50;
      test.rotate = false;
      expect_right(test, 10, 2);
    }
  }
}

TEST(QuantizeModel, BlocksShareTheLastScaleOfAShortAxis) {
  for (const int64_t headdim : {64, 40, 50}) {
    for (const int64_t blocks : {1, 2}) {
      QuantizeCase test = packed_case({0, 300, 340}, 340, 2, headdim);
      test.blocks = blocks;
      test.rotate = headdim == 64;
      expect_right(test, 11);
    }
  }
}

TEST(QuantizeModel, HugeTinyAndNotFinite) {
  for (const int64_t headdim : {64, 50}) {
    for (const double magnitude : {0.0, 0x1p-130, 0x1p-120, 1e-30, 1e30, 3e38}) {
      QuantizeCase test = dense_case(1, 20, 1, headdim);
      std::vector<double> x = random_values(test, 11);
      for (double& value : x) value = std::fmax(std::fmin(value / 4, 1.0), -1.0) * magnitude;
      EXPECT_EQ(definition_fault(test, quantize_in_model(test, x)), "") << magnitude;
    }
    for (const bool rotate : {false, headdim == 64}) {
      QuantizeCase test = dense_case(1, 140, 1, headdim);
      test.rotate = rotate;
      std::vector<double> x = random_values(test, 12);
      x[5] = kNan;
      x[static_cast<size_t>(headdim) + 8] = kInfinity;
      x[static_cast<size_t>(headdim) * 134] = -kInfinity;
      EXPECT_EQ(definition_fault(test, quantize_in_model(test, x)), "");
    }
  }
}

// TANDEM_TEST_SEED and TANDEM_TEST_COUNT change which and how many.
TEST(QuantizeModel, RandomProblems) {
  const char* seed_text = std::getenv("TANDEM_TEST_SEED");
  const char* count_text = std::getenv("TANDEM_TEST_COUNT");
  const uint64_t first = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 4000;
  const uint64_t count = count_text != nullptr ? std::strtoull(count_text, nullptr, 10) : 20;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE("again: TANDEM_TEST_SEED=" + std::to_string(seed) +
                 " TANDEM_TEST_COUNT=1 model_quantize_test --gtest_filter=*RandomProblems");
    expect_right(optest::random_quantize_case(seed, {TANDEM_BF16, TANDEM_FP16}), seed, seed % 3 == 0 ? 3 : 1 << 20);
  }
}

// More than the preparing kernel's block has threads, so that the offsets are clamped in several runs.
TEST(QuantizeModel, MoreSequencesThanThreads) {
  std::vector<int32_t> offsets = {0};
  for (int n = 0; n < 600; ++n) offsets.push_back(offsets.back() + n % 9);
  for (const bool transposed : {false, true}) {
    QuantizeCase test = packed_case(offsets, offsets.back() + 5, 1, 8);
    test.transposed = transposed;
    expect_right(test, 15, 4);
  }
}

// Offsets that go back, and beyond the buffer, are clamped as the host's are.
TEST(QuantizeModel, WildOffsets) {
  for (const bool transposed : {false, true}) {
    QuantizeCase clamped = packed_case({0, 50, 50, 200, 200}, 200, 1, 64);
    clamped.transposed = transposed;
    clamped.blocks = 2;
    QuantizeCase wild = clamped;
    wild.cu_seqlens = {-7, 50, 20, 2000000000, 60};
    const std::vector<double> x = random_values(clamped, 13);
    const Quantized wanted = quantize_in_model(clamped, x);
    const Quantized got = quantize_in_model(wild, x);
    EXPECT_EQ(definition_fault(clamped, wanted), "");
    EXPECT_EQ(got.error, "");
    EXPECT_EQ(got.out, wanted.out);
    EXPECT_EQ(got.scale, wanted.scale);
  }
}

TEST(QuantizeModel, AnyOrderOfEventsGivesTheSameBits) {
  for (const Granularity granularity : kGranularities) {
    QuantizeCase test = packed(192);
    test.granularity = granularity;
    test.rotate = true;
    const std::vector<double> x = values_of(test, 14);
    const Quantized first = quantize_in_model(test, x);
    for (uint64_t seed = 2; seed < 5; ++seed) {
      QuantizeOptions options;
      options.machine = options_for(seed);
      const Quantized again = quantize_in_model(test, x, options);
      EXPECT_EQ(again.error, "");
      EXPECT_EQ(again.out, first.out);
      EXPECT_EQ(again.scale, first.scale);
    }
  }
}

}  // namespace
}  // namespace tandem::model
