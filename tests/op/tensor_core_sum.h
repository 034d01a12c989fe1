#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TANDEM_OPTEST_HD __host__ __device__
#else
#define TANDEM_OPTEST_HD
#endif

// Sums of products of e4m3 numbers as Hopper's tensor cores give them (docs/MODEL.md), from that description alone.
namespace tandem::optest {

constexpr int64_t kTensorCoreStep = 32;   // products of one instruction
constexpr int64_t kTensorCoreKeys = 512;  // of P V that one accumulator takes, at most; then fp32 goes on
constexpr int kTensorCoreBits = 13;

// Of normal numbers: those of e4m3 are, in double, and so are their sums.
TANDEM_OPTEST_HD inline int exponent_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<int>(bits >> 52 & 0x7ff) - 1023;
}

TANDEM_OPTEST_HD inline double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof(power));
  return power;
}

// Towards 0, to a multiple of 2^(exponent - kTensorCoreBits); |value| < 2^(exponent + 2).
TANDEM_OPTEST_HD inline double cut_below(int exponent, double value) {
  return static_cast<int32_t>(value * power_of_two(kTensorCoreBits - exponent)) *
         power_of_two(exponent - kTensorCoreBits);
}

// sum + a(0) b(0) + ... + a(count - 1) b(count - 1), count <= kTensorCoreStep: all terms are cut below the largest
// exponent, a product's being its factors' together, and so is the result below its own.
template <typename A, typename B>
TANDEM_OPTEST_HD double tensor_core_step(double sum, int64_t count, A a, B b) {
  constexpr int kOfZero = -1000;
  int largest = sum == 0 ? kOfZero : exponent_of(sum);
  double plain = sum;
  for (int64_t n = 0; n < count; ++n) {
    const double x = a(n), y = b(n);
    plain += x * y;
    const int exponent = exponent_of(x) + exponent_of(y);  // with a zero, below kOfZero
    if (exponent > largest) largest = exponent;
  }
  if (largest == kOfZero || !(plain - plain == 0)) return plain;
  double exact = cut_below(largest, sum);
  for (int64_t n = 0; n < count; ++n) exact += cut_below(largest, a(n) * b(n));
  return exact == 0 ? 0 : cut_below(exponent_of(exact), exact);
}

// Of any number of products.
template <typename A, typename B>
TANDEM_OPTEST_HD double tensor_core_sum(int64_t count, A a, B b) {
  double sum = 0;
  for (int64_t first = 0; first < count; first += kTensorCoreStep) {
    const int64_t left = count - first;
    sum = tensor_core_step(
        sum, left < kTensorCoreStep ? left : kTensorCoreStep, [&](int64_t n) { return a(first + n); },
        [&](int64_t n) { return b(first + n); });
  }
  return sum;
}

}  // namespace tandem::optest
