#pragma once

#include "core/mask.h"
#include "sm90/forward/params.h"
#include "sm90/forward/row_keys.cuh"
#include "sm90/ptx/device.cuh"

namespace tandem::sm90 {

template <typename Traits>
TANDEM_DEVICE bool is_narrowed(const ForwardParams& params) {
  return Traits::kGeneral && params.narrowed;
}

// The keys that row `row` < q_len of a sequence sees. PERF: H200, causal, 512 keys, 2026-11-30: with other ways to
// write less per tile (docs/TUNING.md), the band instead of every kind of mask gives 1.09 at headdim 64, 1.11 at
// 128, 1.07 at 256.
template <typename Traits>
TANDEM_DEVICE BasicRowInterval<int> visible_keys(const ForwardParams& params, int q_begin, int row, int q_len,
                                                 int k_len, int head, int batch) {
  if (!TANDEM_UNLIKELY(is_narrowed<Traits>(params))) return band_interval(params.band, row, q_len, k_len);
  return row_keys<Traits>(params, q_begin, row, q_len, k_len, head, batch);
}

}  // namespace tandem::sm90
