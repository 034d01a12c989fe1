#pragma once

#include <cstdint>

#include "core/mask.h"
#include "sm90/backward/params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"

namespace tandem::sm90 {

// One bound of a row from an interval array, or what stands for an absent one.
TANDEM_DEVICE int bound_of_row(const int* array, const RowStrides& strides, int batch, int head, int row, int absent) {
  if (array == nullptr) return absent;
  return ptx::load_global(array + batch * strides.batch + head * strides.head + row * strides.row);
}

// What the interval arrays, and only they, show a row: keys [lo, hi). `row` counts as the arrays' rows do.
TANDEM_DEVICE BasicRowInterval<int> array_interval(const BackwardParams& params, int row, int head, int batch) {
  return {bound_of_row(params.lo, params.lo_strides, batch, head, row, 0),
          bound_of_row(params.hi, params.hi_strides, batch, head, row, INT32_MAX)};
}

// The keys that a row sees, in closed form and by the interval arrays; rows past q_len see none. `batch` is 0 in a
// packed problem, where the arrays' rows count from the start of the buffer; q_begin is 0 in a dense one.
TANDEM_DEVICE BasicRowInterval<int> narrowed_row_keys(const BackwardParams& params, int q_begin, int row, int q_len,
                                                      int k_len, int head, int batch) {
  if (row >= q_len) return {};
  const BasicRowInterval<int> narrow = array_interval(params, q_begin + row, head, batch);
  return intersect(row_interval(params.mask, row, q_len, k_len), narrow.lo, narrow.hi);
}

}  // namespace tandem::sm90
