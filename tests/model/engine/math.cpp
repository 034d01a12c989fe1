// Arithmetic in fp32. Results that the ISA calls approximate are rounded from double here: docs/MODEL.md states how far
// the GPU's may be.

#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "engine/api.h"
#include "engine/machine.h"

namespace tandem::model {
namespace {

float flush(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// Of +0 and -0, +0 is the larger; of a number and a NaN, the number counts.
float larger(float a, float b) {
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return std::fmax(a, b);
}

}  // namespace

float ex2(float x) {
  Machine::current().note(Op::kExponential);
  return flush(static_cast<float>(std::exp2(static_cast<double>(flush(x)))));
}
float lg2(float x) {
  return static_cast<float>(std::log2(static_cast<double>(flush(x))));
}
float rcp(float x) {
  return flush(1.0f / flush(x));
}
float tanh_approx(float x) {
  return std::tanh(x);
}

float fma(float a, float b, float c) {
  return flush(std::fma(flush(a), flush(b), flush(c)));
}
float mul(float a, float b) {
  return flush(flush(a) * flush(b));
}
float add(float a, float b) {
  return flush(flush(a) + flush(b));
}
float max(float a, float b) {
  return larger(flush(a), flush(b));
}
float min(float a, float b) {
  return -larger(-flush(a), -flush(b));
}

uint32_t pack_bf16x2(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}
uint32_t pack_f16x2(float low, float high) {
  return to_fp16(low).bits | static_cast<uint32_t>(to_fp16(high).bits) << 16;
}
uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3) {
  constexpr float kLargest = 448.0f;
  constexpr uint32_t kNan = 0x7f;  // whatever its sign
  uint32_t packed = 0;
  const float values[4] = {x0, x1, x2, x3};
  for (int i = 0; i < 4; ++i) {
    const float x = values[i] > kLargest ? kLargest : values[i] < -kLargest ? -kLargest : values[i];
    packed |= (std::isnan(x) ? kNan : to_e4m3(x).bits) << (8 * i);
  }
  return packed;
}
uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = selector >> (4 * i) & 7;
    result |= static_cast<uint32_t>(bytes >> (8 * byte) & 0xff) << (8 * i);
  }
  return result;
}
void unpack_e4m3x4(uint32_t& low, uint32_t& high, uint32_t packed) {
  float values[4];
  for (int i = 0; i < 4; ++i) values[i] = to_float(E4m3{static_cast<uint8_t>(packed >> (8 * i))});
  low = pack_f16x2(values[0], values[1]);
  high = pack_f16x2(values[2], values[3]);
}

}  // namespace tandem::model
