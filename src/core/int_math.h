#pragma once

#include <cstdint>

#include "core/host_device.h"

// Integer arithmetic of the mask and scheduling code. (std::min and its like are not callable from device code.)
namespace tandem {

TANDEM_HD constexpr int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}
TANDEM_HD constexpr int64_t max_of(int64_t a, int64_t b) {
  return a < b ? b : a;
}

// For a >= 0, b > 0; no intermediate sum, so that no `a` overflows.
TANDEM_HD constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// Saturating, for b >= 0.
TANDEM_HD constexpr int64_t add_saturated(int64_t a, int64_t b) {
  return a > INT64_MAX - b ? INT64_MAX : a + b;
}
TANDEM_HD constexpr int64_t sub_saturated(int64_t a, int64_t b) {
  return a < INT64_MIN + b ? INT64_MIN : a - b;
}

}  // namespace tandem
