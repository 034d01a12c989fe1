#pragma once

#include <type_traits>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

template <typename Element>
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site = Site::here()) {
  static_assert(std::is_same_v<Element, Bf16> || std::is_same_v<Element, Fp16>);
  constexpr bool kBf16 = std::is_same_v<Element, Bf16>;
  model::mma(kBf16 ? model::ElementType::kBf16 : model::ElementType::kFp16, d, a, b0, b1, site);
}

}  // namespace tandem::sm90::ptx
