#pragma once

#include <cstdint>
#include <type_traits>

#include "core/host_device.h"

// Integer arithmetic of the mask and scheduling code, in int64_t on the host; kernels do it in int32_t where that is
// wide enough. (std::min, std::numeric_limits and their like are not callable from device code.)
namespace tandem {

// Keeps a function's parameter out of the deduction of its template arguments.
template <typename T>
struct NotDeduced {
  using Type = T;
};
template <typename T>
using Same = typename NotDeduced<T>::Type;

template <typename Int>
inline constexpr Int kMaxInt = std::is_same_v<Int, int64_t> ? static_cast<Int>(INT64_MAX) : static_cast<Int>(INT32_MAX);
template <typename Int>
inline constexpr Int kMinInt = -kMaxInt<Int> - 1;

template <typename A, typename B>
TANDEM_HD constexpr std::common_type_t<A, B> min_of(A a, B b) {
  return a < b ? a : b;
}
template <typename A, typename B>
TANDEM_HD constexpr std::common_type_t<A, B> max_of(A a, B b) {
  return a < b ? b : a;
}

// For a >= 0, b > 0; no intermediate sum, so that no `a` overflows.
template <typename A, typename B>
TANDEM_HD constexpr std::common_type_t<A, B> ceil_div(A a, B b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// Saturating, for b >= 0.
template <typename Int>
TANDEM_HD constexpr Int add_saturated(Int a, Same<Int> b) {
  return a > kMaxInt<Int> - b ? kMaxInt<Int> : a + b;
}
template <typename Int>
TANDEM_HD constexpr Int sub_saturated(Int a, Same<Int> b) {
  return a < kMinInt<Int> + b ? kMinInt<Int> : a - b;
}

}  // namespace tandem
