#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/int_math.h"

// Masks as row intervals: query row i of a sequence sees the keys [lo(i), hi(i)). Everything that decides which keys a
// row, or a tile of rows, sees is written here once, for the CPU backend and for the GPU kernels. (cpu/reference_*
// restates the rule on its own, so that a mistake made here cannot agree with itself.)
//
// Lengths are >= 0, windows and chunks anything up to the largest Int: no sum in here overflows. Int is int64_t, for
// which the names without "Basic" stand, or int32_t, which is what the kernels use: half the instructions and
// registers.
namespace tandem {

template <typename Int>
struct BasicRowInterval {
  Int lo = 0;
  Int hi = 0;  // empty if hi <= lo; then both are 0
  TANDEM_HD constexpr bool empty() const { return hi <= lo; }
  TANDEM_HD constexpr bool operator==(const BasicRowInterval& other) const { return lo == other.lo && hi == other.hi; }
};

using RowInterval = BasicRowInterval<int64_t>;

// Query rows [begin, end); empty if end <= begin, then both are 0.
template <typename Int>
struct BasicRowRange {
  Int begin = 0;
  Int end = 0;
  TANDEM_HD constexpr bool empty() const { return end <= begin; }
  TANDEM_HD constexpr bool operator==(const BasicRowRange& other) const {
    return begin == other.begin && end == other.end;
  }
};

using RowRange = BasicRowRange<int64_t>;

// The closed-form part of a mask; caller's values, validated. Per-row interval arrays are intersected on top.
template <typename Int>
struct BasicMaskSpec {
  bool causal = false;
  bool top_left = false;
  Int window_left = -1;     // -1: open
  Int window_right = -1;    // -1: open
  Int attention_chunk = 0;  // 0: none
};

using MaskSpec = BasicMaskSpec<int64_t>;

// d of the contract: query row i stands at key position i + diagonal [3].
template <typename Int>
TANDEM_HD constexpr Int diagonal(const BasicMaskSpec<Int>& mask, Same<Int> seqlen_q, Same<Int> seqlen_k) {
  return mask.top_left ? 0 : seqlen_k - seqlen_q;
}

template <typename Int>
TANDEM_HD constexpr BasicRowInterval<Int> intersect(BasicRowInterval<Int> interval, Same<Int> lo, Same<Int> hi) {
  const BasicRowInterval<Int> both{max_of(interval.lo, lo), min_of(interval.hi, hi)};
  return both.empty() ? BasicRowInterval<Int>{} : both;
}

template <typename Int>
TANDEM_HD constexpr BasicRowInterval<Int> row_interval(const BasicMaskSpec<Int>& mask, Same<Int> row,
                                                       Same<Int> seqlen_q, Same<Int> seqlen_k) {
  const Int position = row + diagonal(mask, seqlen_q, seqlen_k);
  Int lo = 0;
  Int hi = seqlen_k;
  if (mask.causal) hi = min_of(hi, position + 1);
  if (mask.window_left >= 0) lo = max_of(lo, sub_saturated(position, mask.window_left));
  if (mask.window_right >= 0) hi = min_of(hi, add_saturated(add_saturated(position, mask.window_right), 1));
  if (mask.attention_chunk > 0) {
    if (position < 0) return {};  // its chunk, number floor(position / C) < 0, holds no key
    const Int chunk_begin = position - position % mask.attention_chunk;
    lo = max_of(lo, chunk_begin);
    hi = min_of(hi, add_saturated(chunk_begin, mask.attention_chunk));
  }
  return intersect<Int>({lo, hi}, 0, seqlen_k);
}

// The inverse of row_interval. Before it is clamped to the keys that exist, the interval of a row holds the row's own
// position, and both its ends are non-decreasing in the row. So the rows that see a key are one range, and so are the
// rows that see any, or all, of a run of keys.
namespace mask_detail {

// The smallest row whose interval ends after `key` >= 0, in [0, seqlen_q].
template <typename Int>
TANDEM_HD constexpr Int first_row_reaching(const BasicMaskSpec<Int>& mask, Same<Int> key, Same<Int> seqlen_q,
                                           Same<Int> seqlen_k) {
  Int position = kMinInt<Int>;
  if (mask.causal) position = max_of(position, key);
  if (mask.window_right >= 0) position = max_of(position, key - mask.window_right);
  if (mask.attention_chunk > 0) position = max_of(position, key - key % mask.attention_chunk);
  const Int d = diagonal(mask, seqlen_q, seqlen_k);
  const Int row = d >= 0 ? sub_saturated(position, d) : add_saturated(position, -d);
  return min_of(max_of(row, 0), seqlen_q);
}

// The smallest row whose interval begins after `key` >= 0, in [0, seqlen_q].
template <typename Int>
TANDEM_HD constexpr Int first_row_past(const BasicMaskSpec<Int>& mask, Same<Int> key, Same<Int> seqlen_q,
                                       Same<Int> seqlen_k) {
  Int position = kMaxInt<Int>;
  if (mask.window_left >= 0) position = min_of(position, add_saturated(add_saturated(key, mask.window_left), 1));
  if (mask.attention_chunk > 0) {
    position = min_of(position, add_saturated(key - key % mask.attention_chunk, mask.attention_chunk));
  }
  if (position == kMaxInt<Int>) return seqlen_q;
  const Int d = diagonal(mask, seqlen_q, seqlen_k);
  const Int row = d >= 0 ? sub_saturated(position, d) : add_saturated(position, -d);
  return min_of(max_of(row, 0), seqlen_q);
}

template <typename Int>
TANDEM_HD constexpr BasicRowRange<Int> normalized(BasicRowRange<Int> rows) {
  return rows.empty() ? BasicRowRange<Int>{} : rows;
}

}  // namespace mask_detail

// The rows that see at least one of the keys [key_begin, key_end), where 0 <= key_begin. (A superset where interval
// arrays narrow the mask further.)
template <typename Int>
TANDEM_HD constexpr BasicRowRange<Int> row_range(const BasicMaskSpec<Int>& mask, Same<Int> key_begin, Same<Int> key_end,
                                                 Same<Int> seqlen_q, Same<Int> seqlen_k) {
  key_end = min_of(key_end, seqlen_k);
  if (key_begin >= key_end) return {};
  return mask_detail::normalized<Int>({mask_detail::first_row_reaching(mask, key_begin, seqlen_q, seqlen_k),
                                       mask_detail::first_row_past(mask, key_end - 1, seqlen_q, seqlen_k)});
}

// The rows that see every one of the keys [key_begin, key_end): none if that run is empty or leaves the sequence.
template <typename Int>
TANDEM_HD constexpr BasicRowRange<Int> full_row_range(const BasicMaskSpec<Int>& mask, Same<Int> key_begin,
                                                      Same<Int> key_end, Same<Int> seqlen_q, Same<Int> seqlen_k) {
  if (key_begin >= key_end || key_end > seqlen_k) return {};
  return mask_detail::normalized<Int>({mask_detail::first_row_reaching(mask, key_end - 1, seqlen_q, seqlen_k),
                                       mask_detail::first_row_past(mask, key_begin, seqlen_q, seqlen_k)});
}

// What the rows of a tile see. The extremes leave out the rows that see nothing.
template <typename Int>
struct BasicTileBounds {
  Int min_lo = 0;
  Int max_lo = 0;
  Int min_hi = 0;
  Int max_hi = 0;
  bool any_visible = false;
  bool has_empty = false;  // some row sees nothing: no tile of this m_block is full
};
using TileBounds = BasicTileBounds<int64_t>;

template <typename Int>
TANDEM_HD constexpr void include(BasicTileBounds<Int>& bounds, BasicRowInterval<Int> row) {
  if (row.empty()) {
    bounds.has_empty = true;
  } else if (!bounds.any_visible) {
    bounds = {row.lo, row.lo, row.hi, row.hi, true, bounds.has_empty};
  } else {
    bounds.min_lo = min_of(bounds.min_lo, row.lo);
    bounds.max_lo = max_of(bounds.max_lo, row.lo);
    bounds.min_hi = min_of(bounds.min_hi, row.hi);
    bounds.max_hi = max_of(bounds.max_hi, row.hi);
  }
}

template <typename Int>
TANDEM_HD constexpr bool shows_all(const BasicMaskSpec<Int>& mask) {
  return !mask.causal && mask.window_left < 0 && mask.window_right < 0 && mask.attention_chunk == 0;
}

// The bounds of rows [row_begin, min(row_end, seqlen_q)), in closed form: rows past the end are no rows.
template <typename Int>
TANDEM_HD constexpr BasicTileBounds<Int> tile_bounds(const BasicMaskSpec<Int>& mask, Same<Int> row_begin,
                                                     Same<Int> row_end, Same<Int> seqlen_q, Same<Int> seqlen_k) {
  row_end = min_of(row_end, seqlen_q);
  if (shows_all(mask)) {
    if (row_begin >= row_end || seqlen_k == 0) return {0, 0, 0, 0, false, row_begin < row_end};
    return {0, 0, seqlen_k, seqlen_k, true, false};
  }
  const BasicRowRange<Int> seeing = row_range(mask, 0, seqlen_k, seqlen_q, seqlen_k);
  const Int first = max_of(row_begin, seeing.begin);
  const Int end = min_of(row_end, seeing.end);
  BasicTileBounds<Int> bounds;
  if (first < end) {
    include(bounds, row_interval(mask, first, seqlen_q, seqlen_k));
    include(bounds, row_interval(mask, end - 1, seqlen_q, seqlen_k));
    bounds.has_empty = row_begin < first || end < row_end;
  } else {
    bounds.has_empty = row_begin < row_end;
  }
  return bounds;
}

// A mask without chunks as a band along the diagonal, for kernels: a row at position p = i + d sees those of the keys
// [p - before, p + after] that exist. An open side is as wide as can be, so that nothing asks whether there is one.
// Lengths are at most 2^29, and so no sum overflows.
struct BandMask {
  static constexpr int kOpen = 1 << 30;
  int before = kOpen;
  int after = kOpen;
  bool top_left = false;
};

TANDEM_HD constexpr BandMask band_mask(const BasicMaskSpec<int>& mask) {
  BandMask band;
  if (mask.window_left >= 0) band.before = mask.window_left;
  if (mask.window_right >= 0) band.after = mask.window_right;
  if (mask.causal) band.after = 0;
  band.top_left = mask.top_left;
  return band;
}

// As row_interval(), of any row >= 0; if it is empty, lo and hi are equal, but not always 0.
TANDEM_HD constexpr BasicRowInterval<int> band_interval(const BandMask& band, int row, int seqlen_q, int seqlen_k) {
  const int position = row + (band.top_left ? 0 : seqlen_k - seqlen_q);
  return {min_of(max_of(position - band.before, 0), seqlen_k), min_of(max_of(position + band.after + 1, 0), seqlen_k)};
}

// As tile_bounds(); min_hi and max_lo count where no row is empty. Of the rows that see nothing, the first ones end at
// key 0 and the last ones begin at seqlen_k; the band of some row in between would meet the keys.
TANDEM_HD constexpr BasicTileBounds<int> band_bounds(const BandMask& band, int row_begin, int row_end, int seqlen_q,
                                                     int seqlen_k) {
  row_end = min_of(row_end, seqlen_q);
  if (row_begin >= row_end) return {};
  const BasicRowInterval<int> first = band_interval(band, row_begin, seqlen_q, seqlen_k);
  const BasicRowInterval<int> last = band_interval(band, row_end - 1, seqlen_q, seqlen_k);
  const bool any_visible = first.lo < seqlen_k && last.hi > 0;
  if (!any_visible) return {0, 0, 0, 0, false, true};
  return {first.lo, last.lo, first.hi, last.hi, true, first.hi == 0 || last.lo == seqlen_k};
}

}  // namespace tandem
