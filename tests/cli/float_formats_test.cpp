#include "float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::cli {
namespace {

uint32_t stored_bits(int32_t dtype, double value) {
  uint32_t bits = 0;
  store_element(&bits, dtype, 0, value);
  return bits;
}

double loaded(int32_t dtype, uint32_t bits) {
  return load_element(&bits, dtype, 0);
}

TEST(FloatFormats, NamesAndSizes) {
  EXPECT_EQ(dtype_from_name("bf16"), TANDEM_BF16);
  EXPECT_EQ(dtype_from_name("fp64"), TANDEM_FP64);
  EXPECT_EQ(dtype_from_name("float"), TANDEM_DTYPE_NONE);
  EXPECT_EQ(dtype_bytes(TANDEM_E4M3), 1);
  EXPECT_EQ(dtype_bytes(TANDEM_DTYPE_NONE), 0);
}

TEST(FloatFormats, Bf16IsTheUpperHalfOfFp32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const uint32_t wide = bits << 16;
    float expected;
    std::memcpy(&expected, &wide, sizeof(expected));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(loaded(TANDEM_BF16, bits))) << std::hex << bits;
    } else {
      EXPECT_EQ(loaded(TANDEM_BF16, bits), expected) << std::hex << bits;
      EXPECT_EQ(stored_bits(TANDEM_BF16, expected), bits);
    }
  }
}

TEST(FloatFormats, KnownValues) {
  EXPECT_EQ(loaded(TANDEM_FP16, 0x3c00), 1.0);
  EXPECT_EQ(loaded(TANDEM_FP16, 0xc000), -2.0);
  EXPECT_EQ(loaded(TANDEM_FP16, 0x7bff), 65504.0);
  EXPECT_EQ(loaded(TANDEM_FP16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(loaded(TANDEM_FP16, 0x7c00), std::numeric_limits<double>::infinity());
  EXPECT_EQ(loaded(TANDEM_E4M3, 0x7e), 448.0);
  EXPECT_TRUE(std::isnan(loaded(TANDEM_E4M3, 0x7f)));
  EXPECT_EQ(loaded(TANDEM_E4M3, 0x01), std::ldexp(1.0, -9));
  EXPECT_EQ(loaded(TANDEM_E5M2, 0x7b), 57344.0);
  EXPECT_EQ(loaded(TANDEM_E5M2, 0xfc), -std::numeric_limits<double>::infinity());
}

TEST(FloatFormats, EveryNumberIsStoredAsItself) {
  for (const int32_t dtype : {TANDEM_FP16, TANDEM_E4M3, TANDEM_E5M2}) {
    const uint32_t count = 1u << (8 * dtype_bytes(dtype));
    for (uint32_t bits = 0; bits < count; ++bits) {
      const double value = loaded(dtype, bits);
      if (std::isnan(value)) continue;
      EXPECT_EQ(stored_bits(dtype, value), bits) << tandem_dtype_name(dtype);
    }
  }
}

TEST(FloatFormats, RoundsToNearestEvenOnce) {
  EXPECT_EQ(round_to(TANDEM_BF16, 1 + std::ldexp(1.0, -8)), 1.0);
  EXPECT_EQ(round_to(TANDEM_BF16, 1 + 3 * std::ldexp(1.0, -8)), 1 + std::ldexp(1.0, -6));
  // A tie in bf16 but for a part below fp32's last place: going through fp32 would round it down.
  EXPECT_EQ(round_to(TANDEM_BF16, 1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40)), 1 + std::ldexp(1.0, -7));
  EXPECT_EQ(round_to(TANDEM_FP16, std::ldexp(1.0, -25)), 0.0);
  EXPECT_EQ(round_to(TANDEM_FP16, 1.5 * std::ldexp(1.0, -25)), std::ldexp(1.0, -24));
  EXPECT_EQ(round_to(TANDEM_FP32, 1 + std::ldexp(1.0, -30)), 1.0);
}

TEST(FloatFormats, OverflowIsInfinityAndInE4m3Nan) {
  EXPECT_EQ(round_to(TANDEM_FP16, 65520), std::numeric_limits<double>::infinity());
  EXPECT_EQ(round_to(TANDEM_FP16, 65519), 65504.0);
  EXPECT_EQ(round_to(TANDEM_E4M3, 464), 448.0);
  EXPECT_TRUE(std::isnan(round_to(TANDEM_E4M3, 465)));
  EXPECT_EQ(round_to(TANDEM_E5M2, -1e9), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(round_to(TANDEM_BF16, 1e300), std::numeric_limits<double>::infinity());
}

TEST(FloatFormats, UnitInLastPlace) {
  EXPECT_EQ(unit_in_last_place(TANDEM_BF16, 1), std::ldexp(1.0, -7));
  EXPECT_EQ(unit_in_last_place(TANDEM_BF16, 3.9), std::ldexp(1.0, -6));
  EXPECT_EQ(unit_in_last_place(TANDEM_FP16, 0), std::ldexp(1.0, -24));
  EXPECT_EQ(unit_in_last_place(TANDEM_FP64, 1), std::ldexp(1.0, -52));
}

}  // namespace
}  // namespace tandem::cli
