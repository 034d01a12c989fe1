#pragma once

#include <cmath>
#include <cstdint>

#include "core/mask.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/fragment.cuh"

namespace tandem::sm90 {

// Selects the hidden scores of a tile away, whatever they hold [7]: a thread's two rows see the keys [lo, hi).
// `first_key`: the tile's first column. Two comparisons with constants, of which the one with lo is mostly skipped,
// take fewer instructions than one that covers both ends.
template <int kRegisters>
TANDEM_DEVICE void apply_mask(float (&acc_s)[kRegisters], const BasicRowInterval<int> (&visible)[2], int first_key) {
  const int column = first_key + fragment_first_column_anew();
  const int end[2] = {visible[0].hi - column, visible[1].hi - column};
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    if (fragment_column_offset(i) >= end[half_of(i)]) acc_s[i] = -INFINITY;
  }
  if (!ptx::any_sync(visible[0].lo > first_key || visible[1].lo > first_key)) return;
  const int begin[2] = {visible[0].lo - column, visible[1].lo - column};
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    if (fragment_column_offset(i) < begin[half_of(i)]) acc_s[i] = -INFINITY;
  }
}

}  // namespace tandem::sm90
