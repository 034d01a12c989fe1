#pragma once

#include <type_traits>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"

// Not generated here: one template stands for all element types and widths.
namespace tandem::sm90::ptx {

enum class Major : int { kK = 0, kMn = 1 };

template <typename Element, int kN>
struct Wgmma {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  static constexpr model::ElementType kElement = std::is_same_v<Element, Bf16>   ? model::ElementType::kBf16
                                                 : std::is_same_v<Element, Fp16> ? model::ElementType::kFp16
                                                                                 : model::ElementType::kE4m3;
  template <Major kMajorA, Major kMajorB>
  static constexpr model::WgmmaShape shape() {
    static_assert(sizeof(Element) == 2 || (kMajorA == Major::kK && kMajorB == Major::kK), "fp8 operands are K-major");
    return {kElement, kN, kMajorA == Major::kMn, kMajorB == Major::kMn};
  }

  template <Major kMajorA = Major::kK, Major kMajorB = Major::kK>
  static void ss(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate, Site site = Site::here()) {
    model::wgmma(shape<kMajorA, kMajorB>(), d, nullptr, a, b, accumulate, site);
  }
  template <Major kMajorB = Major::kK>
  static void rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate, Site site = Site::here()) {
    model::wgmma(shape<Major::kK, kMajorB>(), d, a, 0, b, accumulate, site);
  }
};

}  // namespace tandem::sm90::ptx
