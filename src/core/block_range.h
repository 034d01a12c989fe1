#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/int_math.h"
#include "core/mask.h"

// Which tiles of the score matrix are worth visiting, and which of those need no masking.
namespace tandem {

// kSkip: no row sees a key of the tile. kFull: every row sees every key. Else kPartial: apply the mask by element.
enum class TileKind { kSkip, kPartial, kFull };

// Exact for closed-form masks. With interval arrays a tile that no row sees may be called partial, never the reverse.
template <typename Int>
TANDEM_HD constexpr TileKind classify_tile(const BasicTileBounds<Int>& bounds, Same<Int> key_begin, Same<Int> key_end) {
  if (!bounds.any_visible || key_end <= bounds.min_lo || bounds.max_hi <= key_begin) return TileKind::kSkip;
  const bool full = !bounds.has_empty && bounds.max_lo <= key_begin && key_end <= bounds.min_hi;
  return full ? TileKind::kFull : TileKind::kPartial;
}

// Blocks [begin, end) may be visible; of these, [full_begin, full_end) are full and the rest partial.
// begin <= full_begin <= full_end <= end always holds, so three loops cover the range in either direction.
template <typename Int>
struct BasicBlockRange {
  Int begin = 0;
  Int end = 0;
  Int full_begin = 0;
  Int full_end = 0;
  TANDEM_HD constexpr bool empty() const { return end <= begin; }
};
using BlockRange = BasicBlockRange<int64_t>;

namespace block_range_detail {

template <typename Int>
TANDEM_HD constexpr BasicBlockRange<Int> with_full_run(Int begin, Int end, Int full_begin, Int full_end) {
  if (full_begin >= full_end) return {begin, end, end, end};
  return {begin, end, full_begin, full_end};
}

}  // namespace block_range_detail

// The n_blocks, of block_n keys each, that an m_block of these bounds visits.
template <typename Int>
TANDEM_HD constexpr BasicBlockRange<Int> block_range(const BasicTileBounds<Int>& bounds, Same<Int> block_n) {
  if (!bounds.any_visible) return {};
  const Int begin = bounds.min_lo / block_n;
  const Int end = ceil_div(bounds.max_hi, block_n);
  if (bounds.has_empty) return {begin, end, end, end};
  return block_range_detail::with_full_run<Int>(begin, end, ceil_div(bounds.max_lo, block_n), bounds.min_hi / block_n);
}

// For the backward: the m_blocks, of block_m rows each, that keys [key_begin, key_end) are visited by. Rows past
// seqlen_q are no rows, so a last m_block that is cut short can be full; keys past seqlen_k are seen by nobody, so a
// last n_block that is cut short cannot.
template <typename Int>
TANDEM_HD constexpr BasicBlockRange<Int> m_block_range(const BasicMaskSpec<Int>& mask, Same<Int> key_begin,
                                                       Same<Int> key_end, Same<Int> seqlen_q, Same<Int> seqlen_k,
                                                       Same<Int> block_m) {
  const BasicRowRange<Int> rows = row_range(mask, key_begin, key_end, seqlen_q, seqlen_k);
  if (rows.empty()) return {};
  const BasicRowRange<Int> full = full_row_range(mask, key_begin, key_end, seqlen_q, seqlen_k);
  const Int full_end = full.end == seqlen_q ? ceil_div(full.end, block_m) : full.end / block_m;
  return block_range_detail::with_full_run<Int>(rows.begin / block_m, ceil_div(rows.end, block_m),
                                                ceil_div(full.begin, block_m), full_end);
}

}  // namespace tandem
