#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "core/mask.h"
#include "sm90/forward/params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"

namespace tandem::sm90 {

// Params: those of the kernel; their mask, lo and hi are named alike.
template <typename Traits, typename Params>
TANDEM_DEVICE bool has_intervals(const Params& params) {
  return Traits::kGeneral && (params.lo != nullptr || params.hi != nullptr);
}

// One bound of a row from an interval array.
TANDEM_DEVICE int interval_bound(const int* array, const RowStrides& strides, int batch, int head, int row) {
  return ptx::load_global(array + batch * strides.batch + head * strides.head + row * strides.row);
}

// The keys that a row sees, in closed form and by the interval arrays; rows past q_len see none. `batch` is 0 in a
// packed problem, where the arrays' rows count from the start of the buffer; q_begin is 0 in a dense one.
template <typename Traits, typename Params>
TANDEM_DEVICE BasicRowInterval<int> row_keys(const Params& params, int q_begin, int row, int q_len, int k_len, int head,
                                             int batch) {
  if (row >= q_len) return {};
  const BasicRowInterval<int> keys = row_interval(params.mask, row, q_len, k_len);
  if (!TANDEM_UNLIKELY(has_intervals<Traits>(params))) return keys;
  const int lo = params.lo == nullptr ? 0 : interval_bound(params.lo, params.lo_strides, batch, head, q_begin + row);
  const int hi =
      params.hi == nullptr ? k_len : interval_bound(params.hi, params.hi_strides, batch, head, q_begin + row);
  return intersect(keys, lo, hi);
}

}  // namespace tandem::sm90
