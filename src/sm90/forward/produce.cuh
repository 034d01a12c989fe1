#pragma once

#include "sm90/forward/clean.cuh"
#include "sm90/forward/load.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/schedule.cuh"
#include "sm90/forward/store.cuh"
#include "sm90/forward/transpose.cuh"
#include "sm90/ptx/device.cuh"

namespace tandem::sm90 {

// The producer warpgroup: one warp loads K and V (by one thread), one draws work tiles and loads their Q, one clears
// what no row sees (and, if need be, transposes V), one sends O home.
template <typename Traits>
TANDEM_DEVICE void produce(const ForwardParams& params) {
  const int warp = ptx::warp_index();
  if (warp == 0) {
    if (ptx::elect_one()) load_tiles<Traits>(params);
  } else if (warp == 1) {
    schedule_tiles<Traits>(params);
  } else if (warp == 2) {
    if constexpr (Traits::kTransposes) {
      transpose_tiles<Traits>(params);
    } else {
      clean_tiles<Traits>(params);
    }
  } else {
    store_tiles<Traits>(params);
  }
}

}  // namespace tandem::sm90
