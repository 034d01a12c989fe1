#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tandem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A format as its specification has it; the tests below compute every value from this alone.
struct Specification {
  const char* name;
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  uint32_t largest_finite;  // pattern
  uint32_t overflow;        // pattern that values beyond the finite ones get
};

constexpr Specification kSpecifications[] = {
    {"fp16", DType::kFp16, 5, 10, 15, 0x7bff, 0x7c00},
    {"bf16", DType::kBf16, 8, 7, 127, 0x7f7f, 0x7f80},
    {"e4m3", DType::kE4m3, 4, 3, 7, 0x7e, 0x7f},
    {"e5m2", DType::kE5m2, 5, 2, 15, 0x7b, 0x7c},
};

class SmallFormat : public testing::TestWithParam<Specification> {
 protected:
  const Specification& spec() const { return GetParam(); }
  uint32_t sign_bit() const { return 1u << (spec().exponent_bits + spec().mantissa_bits); }

  // The number that a finite pattern without sign stands for.
  double value_of(uint32_t pattern) const {
    const uint32_t exponent = pattern >> spec().mantissa_bits;
    const double fraction = (pattern & ((1u << spec().mantissa_bits) - 1)) / std::pow(2.0, spec().mantissa_bits);
    return exponent == 0 ? fraction * std::pow(2.0, 1 - spec().bias)
                         : (1 + fraction) * std::pow(2.0, static_cast<int>(exponent) - spec().bias);
  }

  uint32_t store(double value) const {
    uint16_t two[2] = {0xeeee, 0xeeee};
    store_element(two, spec().dtype, 1, value);
    if (dtype_bytes(spec().dtype) == 2) return two[1];
    uint8_t second;
    std::memcpy(&second, reinterpret_cast<const uint8_t*>(two) + 1, 1);
    return second;
  }

  double load(uint32_t pattern) const {
    const uint16_t two = static_cast<uint16_t>(pattern);
    const uint8_t one = static_cast<uint8_t>(pattern);
    return dtype_bytes(spec().dtype) == 2 ? load_element(&two, spec().dtype, 0) : load_element(&one, spec().dtype, 0);
  }

  uint32_t from_float(float value) const {
    switch (spec().dtype) {
      case DType::kFp16: return to_fp16(value).bits;
      case DType::kBf16: return to_bf16(value).bits;
      case DType::kE4m3: return to_e4m3(value).bits;
      default: return to_e5m2(value).bits;
    }
  }

  bool is_nan(uint32_t pattern) const { return std::isnan(load(pattern)); }
};

TEST_P(SmallFormat, EveryFinitePatternHasItsValueAndComesBack) {
  for (uint32_t pattern = 0; pattern <= spec().largest_finite; ++pattern) {
    const double value = value_of(pattern);
    ASSERT_EQ(load(pattern), value) << pattern;
    ASSERT_EQ(load(pattern | sign_bit()), -value) << pattern;
    ASSERT_EQ(store(value), pattern);
    ASSERT_EQ(store(-value), pattern | sign_bit());
    ASSERT_EQ(from_float(static_cast<float>(value)), pattern);
    ASSERT_EQ(from_float(static_cast<float>(-value)), pattern | sign_bit());
  }
  EXPECT_TRUE(std::signbit(load(sign_bit())));
}

TEST_P(SmallFormat, EveryOtherPatternIsInfinityOrNaN) {
  for (uint32_t pattern = spec().largest_finite + 1; pattern < sign_bit(); ++pattern) {
    const bool is_infinity = pattern == spec().overflow && spec().dtype != DType::kE4m3;
    ASSERT_EQ(is_nan(pattern), !is_infinity) << pattern;
    ASSERT_EQ(is_nan(pattern | sign_bit()), !is_infinity) << pattern;
    if (is_infinity) {
      EXPECT_EQ(load(pattern), kInfinity);
      EXPECT_EQ(load(pattern | sign_bit()), -kInfinity);
    }
  }
}

// Between two neighbours: the middle goes to the even one, everything else to the nearer. The last interval is the one
// up to where the next finite value would be.
TEST_P(SmallFormat, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t pattern = 0; pattern <= spec().largest_finite; ++pattern) {
    const uint32_t above = pattern == spec().largest_finite ? spec().overflow : pattern + 1;
    const double middle = (value_of(pattern) + value_of(pattern + 1)) / 2;
    const uint32_t even = pattern % 2 == 0 ? pattern : above;
    ASSERT_EQ(store(middle), even) << pattern;
    ASSERT_EQ(store(-middle), even | sign_bit()) << pattern;
    ASSERT_EQ(store(std::nextafter(middle, 0.0)), pattern);
    ASSERT_EQ(store(std::nextafter(middle, kInfinity)), above);

    const float middle_fp32 = static_cast<float>(middle);
    if (!std::isfinite(middle_fp32)) continue;  // the end of bf16 is the end of fp32
    ASSERT_EQ(middle_fp32, middle) << "fp32 holds the middles";
    ASSERT_EQ(from_float(middle_fp32), even) << pattern;
    ASSERT_EQ(from_float(std::nextafter(middle_fp32, 0.0f)), pattern);
    ASSERT_EQ(from_float(std::nextafter(middle_fp32, std::numeric_limits<float>::infinity())), above);
  }
}

TEST_P(SmallFormat, Extremes) {
  for (double large : {1e30 * value_of(spec().largest_finite), 1e300, kInfinity}) {
    EXPECT_EQ(store(large), spec().overflow);
    EXPECT_EQ(store(-large), spec().overflow | sign_bit());
  }
  EXPECT_EQ(store(1e-300), 0u);
  EXPECT_EQ(store(-1e-300), sign_bit());
  EXPECT_EQ(store(std::numeric_limits<double>::denorm_min()), 0u);
  EXPECT_TRUE(is_nan(store(std::nan(""))));
  EXPECT_TRUE(is_nan(store(-std::nan(""))));
  EXPECT_TRUE(is_nan(from_float(std::nanf(""))));
  EXPECT_EQ(from_float(std::numeric_limits<float>::infinity()), spec().overflow);
}

// Rounding to fp32 on the way lands on a middle and then goes to the even neighbour, which is the wrong one.
TEST_P(SmallFormat, DoublesAreRoundedOnce) {
  const double step = std::pow(2.0, -spec().mantissa_bits);
  const double value = 1 + step / 2 + 1e-12;
  ASSERT_EQ(static_cast<double>(static_cast<float>(value)), 1 + step / 2);
  EXPECT_EQ(load(store(value)), 1 + step);
}

TEST_P(SmallFormat, StoresOneElementOnly) {
  std::vector<uint8_t> bytes(16, 0xab);
  store_element(bytes.data(), spec().dtype, 3, 1.0);
  const size_t size = static_cast<size_t>(dtype_bytes(spec().dtype));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool is_neighbour = i / size != 3;
    EXPECT_TRUE(!is_neighbour || bytes[i] == 0xab) << i;
  }
  EXPECT_EQ(load_element(bytes.data(), spec().dtype, 3), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Dtype, SmallFormat, testing::ValuesIn(kSpecifications),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Dtype, KnownConstants) {
  EXPECT_EQ(to_float(Fp16{0x3555}), 0.333251953125f);
  EXPECT_EQ(to_float(Bf16{0x4049}), 3.140625f);
  EXPECT_EQ(to_float(E4m3{0x7e}), 448.0f);
  EXPECT_EQ(to_float(E5m2{0x7b}), 57344.0f);
  EXPECT_EQ(to_float(E4m3{0x01}), 0.001953125f);
  EXPECT_EQ(to_float(Fp16{0x0001}), std::ldexp(1.0f, -24));
}

TEST(Dtype, WideTypesAndIntegers) {
  double fp64[2] = {};
  store_element(fp64, DType::kFp64, 1, 0.1);
  EXPECT_EQ(load_element(fp64, DType::kFp64, 1), 0.1);
  float fp32[2] = {};
  store_element(fp32, DType::kFp32, 1, 0.1);
  EXPECT_EQ(fp32[1], 0.1f);
  const int32_t integers[2] = {0, -7};
  EXPECT_EQ(load_element(integers, DType::kInt32, 1), -7.0);
}

TEST(Dtype, NamesAndSizes) {
  EXPECT_STREQ(dtype_name(DType::kBf16), "bf16");
  EXPECT_STREQ(dtype_name(static_cast<DType>(99)), "unknown dtype");
  EXPECT_EQ(dtype_bytes(DType::kFp64), 8);
  EXPECT_EQ(dtype_bytes(DType::kE5m2), 1);
  EXPECT_EQ(dtype_bytes(static_cast<DType>(99)), 0);
}

}  // namespace
}  // namespace tandem
