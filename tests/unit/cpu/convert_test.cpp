#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/cpu/convert_test.cpp"
#include "hwy/foreach_target.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "cpu/simd/convert-inl.h"
#include "cpu/simd/fp8-inl.h"
#include "tests/unit/cpu/each_target.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Every 16-bit pattern, at every length of a remainder. The single-value conversions of core/dtype.h are tested by
// themselves.
template <typename Half>
void check_widening(DType dtype) {
  volatile size_t count = 65536 + 21;  // volatile: g++ 12 warns falsely of an overrun where it knows the size
  std::vector<uint16_t> patterns(count);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> values(patterns.size());
  load_row(patterns.data(), dtype, 0, patterns.size(), values.data());
  for (size_t i = 0; i < patterns.size(); ++i) {
    const float expected = to_float(Half{patterns[i]});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(values[i])) << "pattern " << patterns[i];
    } else {
      ASSERT_EQ(bits_of(values[i]), bits_of(expected)) << "pattern " << patterns[i];
    }
  }
}

inline uint16_t narrow_one(float value, Fp16) {
  return to_fp16(value).bits;
}
inline uint16_t narrow_one(float value, Bf16) {
  return to_bf16(value).bits;
}

template <typename Half>
void check_narrowing(DType dtype) {
  std::mt19937 random(7);
  volatile size_t count = 200003;
  std::vector<float> values(count);
  for (float& value : values) {
    const uint32_t bits = static_cast<uint32_t>(random());
    std::memcpy(&value, &bits, sizeof value);
  }
  size_t i = 0;
  for (uint32_t half = 0; half < 65536; ++half) {  // halfway between neighbours, where ties go to even
    const float low = to_float(Half{static_cast<uint16_t>(half)});
    const float high = to_float(Half{static_cast<uint16_t>(half + 1)});
    if (std::isfinite(low) && std::isfinite(high)) values[i++] = low + (high - low) / 2;
  }
  for (const float special : {65519.0f, 65520.0f, -65520.0f, 1e30f, 6e-8f, 2.9e-8f, 2.98023224e-8f, 0.0f, -0.0f,
                              HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    values[i++] = special;
  }
  std::vector<uint16_t> narrowed(values.size());
  store_row(values.data(), values.size(), narrowed.data(), dtype, 0);
  for (size_t at = 0; at < values.size(); ++at) {
    const uint16_t expected = narrow_one(values[at], Half{});
    if (std::isnan(values[at])) {
      ASSERT_TRUE(std::isnan(to_float(Half{narrowed[at]}))) << "value " << at;
    } else {
      ASSERT_EQ(narrowed[at], expected) << "value " << values[at];
    }
  }
}

// Rows shorter than a vector, at any alignment, write and read nothing else.
void check_short_rows() {
  for (size_t count = 0; count < 40; ++count) {
    std::vector<uint16_t> halves(count + 2, 0x3C00);  // 1 in fp16
    std::vector<float> row(count + 2, -5.0f);
    load_row(halves.data(), DType::kFp16, 1, count, row.data() + 1);
    EXPECT_EQ(row.front(), -5.0f);
    EXPECT_EQ(row.back(), -5.0f);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(row[i + 1], 1.0f);
    store_row(std::vector<float>(count, 2.0f).data(), count, halves.data(), DType::kFp16, 1);
    EXPECT_EQ(halves.front(), 0x3C00);
    EXPECT_EQ(halves.back(), 0x3C00);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(halves[i + 1], 0x4000);
  }
}

// Every pattern of e4m3 and, on the way back, values of all magnitudes and every tie.
void check_e4m3() {
  volatile size_t count = 256 + 21;
  std::vector<uint8_t> patterns(count);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint8_t>(i);
  std::vector<float> values(patterns.size());
  load_row(patterns.data(), DType::kE4m3, 0, patterns.size(), values.data());
  for (size_t i = 0; i < patterns.size(); ++i) {
    const float expected = to_float(E4m3{patterns[i]});
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(values[i]) : bits_of(values[i]) == bits_of(expected)) << i;
  }

  std::mt19937 random(11);
  std::vector<float> wide = {448,   463.9f,   464,        464.1f,    -464.1f, 480,
                             1e30f, 0x1p-10f, 0x1.8p-10f, 0x1p-149f, 0.0f,    -0.0f};
  for (const float special : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) wide.push_back(special);
  for (int i = 0; i + 1 < 0x7f; ++i) {
    wide.push_back((to_float(E4m3{static_cast<uint8_t>(i)}) + to_float(E4m3{static_cast<uint8_t>(i + 1)})) / 2);
  }
  for (int i = 0; i < 50000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof value);
    wide.push_back(i % 2 == 0 ? value : std::remainder(value, 500.0f));
  }
  std::vector<uint8_t> narrowed(wide.size());
  store_row(wide.data(), wide.size(), narrowed.data(), DType::kE4m3, 0);
  for (size_t i = 0; i < wide.size(); ++i) {
    if (std::isnan(wide[i])) {
      ASSERT_EQ(narrowed[i] & 0x7f, 0x7f);
    } else {
      ASSERT_EQ(narrowed[i], to_e4m3(wide[i]).bits) << wide[i];
    }
  }
}

// P in e4m3 is 2^8 p rounded to it.
void check_rounded_probabilities() {
  const Lanes<float> d;
  std::mt19937 random(12);
  std::vector<float> values = {0, 1, 0x1p-14f, 0x1p-17f, 0x1p-18f, 0x1.8p-18f, 0x1p-126f, 1 - 0x1p-24f, 0.53125f};
  for (int i = 0; i < 50000; ++i) values.push_back(std::exp2(-30 * static_cast<float>(random()) * 0x1p-32f));
  for (const float p : values) {
    const float rounded = hn::GetLane(round_probability(d, hn::Set(d, p)));
    ASSERT_EQ(rounded, to_float(to_e4m3(p * 256)) / 256) << p;
  }
}

void check_conversions() {
  check_e4m3();
  check_rounded_probabilities();
  check_widening<Fp16>(DType::kFp16);
  check_widening<Bf16>(DType::kBf16);
  check_narrowing<Fp16>(DType::kFp16);
  check_narrowing<Bf16>(DType::kBf16);
  check_short_rows();
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tandem {
namespace {

HWY_EXPORT(check_conversions);

TEST(Convert, EveryPatternAndEveryTie) {
  for_each_target([] { HWY_DYNAMIC_DISPATCH(check_conversions)(); });
}

}  // namespace
}  // namespace tandem

#endif  // HWY_ONCE
