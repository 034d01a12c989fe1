#pragma once

#include <cstring>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"

// Each operand is checked: the pattern that stands in registers which a wgmma owns must not enter arithmetic.
namespace tandem::sm90::ptx {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
// `value`, if it may be used.
inline float usable(float value, Site site) {
  model::check_not_held(float_to_bits(value), site);
  return value;
}

inline float ex2(float x, Site site = Site::here()) {
  return model::ex2(usable(x, site));
}
inline float lg2(float x, Site site = Site::here()) {
  return model::lg2(usable(x, site));
}
inline float rcp(float x, Site site = Site::here()) {
  return model::rcp(usable(x, site));
}
inline float tanh_approx(float x, Site site = Site::here()) {
  return model::tanh_approx(usable(x, site));
}
inline float fma(float a, float b, float c, Site site = Site::here()) {
  return model::fma(usable(a, site), usable(b, site), usable(c, site));
}
inline float mul(float a, float b, Site site = Site::here()) {
  return model::mul(usable(a, site), usable(b, site));
}
inline float add(float a, float b, Site site = Site::here()) {
  return model::add(usable(a, site), usable(b, site));
}
inline float max(float a, float b, Site site = Site::here()) {
  return model::max(usable(a, site), usable(b, site));
}
inline float min(float a, float b, Site site = Site::here()) {
  return model::min(usable(a, site), usable(b, site));
}
inline uint32_t pack_bf16x2(float low, float high, Site site = Site::here()) {
  return model::pack_bf16x2(usable(low, site), usable(high, site));
}
inline uint32_t pack_f16x2(float low, float high, Site site = Site::here()) {
  return model::pack_f16x2(usable(low, site), usable(high, site));
}
inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  return model::permute_bytes(low, high, selector);
}
inline float f16_to_float(uint16_t bits) {
  return to_float(Fp16{bits});
}
inline uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3, Site site = Site::here()) {
  return model::pack_e4m3x4(usable(x0, site), usable(x1, site), usable(x2, site), usable(x3, site));
}

inline void unpack_e4m3x4(uint32_t& low, uint32_t& high, uint32_t packed) {
  model::unpack_e4m3x4(low, high, packed);
}

}  // namespace tandem::sm90::ptx
