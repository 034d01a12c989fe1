#pragma once

#include <cmath>
#include <cstdint>

#include "core/mask.h"
#include "sm90/ptx/device.cuh"
#include "sm90/tile/fragment.cuh"

namespace tandem::sm90 {

// The keys that one query row sees, [lo, lo + count), in 32 bits.
struct VisibleKeys {
  int lo;
  uint32_t count;
};

TANDEM_DEVICE VisibleKeys visible_keys(const BasicRowInterval<int>& keys) {
  return {keys.lo, static_cast<uint32_t>(keys.hi - keys.lo)};
}

// Selects the hidden scores of a tile away, whatever they hold [7]. `first_key`: the tile's first column.
template <int kRegisters>
TANDEM_DEVICE void apply_mask(float (&acc_s)[kRegisters], const VisibleKeys (&visible)[2], int first_key) {
  const int column = first_key + fragment_first_column();
  // One comparison covers both ends: below lo the difference wraps to a huge number.
  const uint32_t from_lo[2] = {static_cast<uint32_t>(column - visible[0].lo),
                               static_cast<uint32_t>(column - visible[1].lo)};
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) {
    const int half = half_of(i);
    if (from_lo[half] + fragment_column_offset(i) >= visible[half].count) acc_s[i] = -INFINITY;
  }
}

}  // namespace tandem::sm90
