#include "cpu/simd/description.h"

#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/description.cpp"
#include "hwy/foreach_target.h"

#include "cpu/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {

std::string describe_target() {
  return std::string(hwy::TargetName(HWY_TARGET)) + ", " + std::to_string(hn::Lanes(Lanes<float>())) + " lanes of fp32";
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tandem {

HWY_EXPORT(describe_target);

std::string simd_description() {
  return HWY_DYNAMIC_DISPATCH(describe_target)();
}

}  // namespace tandem

#endif  // HWY_ONCE
