#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "cpu/simd/targets.h"
// After targets.h:
#include "hwy/highway.h"

namespace tandem {

// Calls `test` once for each instruction set that this machine has and the library was built for, that being the one
// that dynamic dispatch then chooses.
template <typename Test>
void for_each_target(Test test) {
  const auto available = static_cast<uint64_t>(hwy::SupportedTargets());
  for (uint64_t targets = available & static_cast<uint64_t>(HWY_TARGETS); targets != 0; targets &= targets - 1) {
    const uint64_t target = targets & (~targets + 1);
    SCOPED_TRACE(hwy::TargetName(static_cast<int64_t>(target)));
    hwy::SetSupportedTargetsForTest(static_cast<int64_t>(target));
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace tandem
