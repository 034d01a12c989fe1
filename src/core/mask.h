#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/int_math.h"

// Masks as row intervals: query row i of a sequence sees the keys [lo(i), hi(i)). Everything that decides which keys a
// row, or a tile of rows, sees is written here once, for the CPU backend and for the GPU kernels. (cpu/reference_*
// restates the rule on its own, so that a mistake made here cannot agree with itself.)
//
// Lengths are >= 0, windows and chunks anything up to INT64_MAX: no sum in here overflows.
namespace tandem {

struct RowInterval {
  int64_t lo = 0;
  int64_t hi = 0;  // empty if hi <= lo; then both are 0
  TANDEM_HD constexpr bool empty() const { return hi <= lo; }
  TANDEM_HD constexpr bool operator==(const RowInterval& other) const { return lo == other.lo && hi == other.hi; }
};

// Query rows [begin, end); empty if end <= begin, then both are 0.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  TANDEM_HD constexpr bool empty() const { return end <= begin; }
  TANDEM_HD constexpr bool operator==(const RowRange& other) const { return begin == other.begin && end == other.end; }
};

// The closed-form part of a mask; caller's values, validated. Per-row interval arrays are intersected on top.
struct MaskSpec {
  bool causal = false;
  bool top_left = false;
  int64_t window_left = -1;     // -1: open
  int64_t window_right = -1;    // -1: open
  int64_t attention_chunk = 0;  // 0: none
};

// d of the contract: query row i stands at key position i + diagonal [3].
TANDEM_HD constexpr int64_t diagonal(const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
  return mask.top_left ? 0 : seqlen_k - seqlen_q;
}

TANDEM_HD constexpr RowInterval intersect(RowInterval interval, int64_t lo, int64_t hi) {
  const RowInterval both{max_of(interval.lo, lo), min_of(interval.hi, hi)};
  return both.empty() ? RowInterval{} : both;
}

TANDEM_HD constexpr RowInterval row_interval(const MaskSpec& mask, int64_t row, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t position = row + diagonal(mask, seqlen_q, seqlen_k);
  int64_t lo = 0;
  int64_t hi = seqlen_k;
  if (mask.causal) hi = min_of(hi, position + 1);
  if (mask.window_left >= 0) lo = max_of(lo, sub_saturated(position, mask.window_left));
  if (mask.window_right >= 0) hi = min_of(hi, add_saturated(add_saturated(position, mask.window_right), 1));
  if (mask.attention_chunk > 0) {
    if (position < 0) return {};  // its chunk, number floor(position / C) < 0, holds no key
    const int64_t chunk_begin = position - position % mask.attention_chunk;
    lo = max_of(lo, chunk_begin);
    hi = min_of(hi, add_saturated(chunk_begin, mask.attention_chunk));
  }
  return intersect({lo, hi}, 0, seqlen_k);
}

// The inverse of row_interval. Before it is clamped to the keys that exist, the interval of a row holds the row's own
// position, and both its ends are non-decreasing in the row. So the rows that see a key are one range, and so are the
// rows that see any, or all, of a run of keys.
namespace mask_detail {

// The smallest row whose interval ends after `key` >= 0, in [0, seqlen_q].
TANDEM_HD constexpr int64_t first_row_reaching(const MaskSpec& mask, int64_t key, int64_t seqlen_q, int64_t seqlen_k) {
  int64_t position = INT64_MIN;
  if (mask.causal) position = max_of(position, key);
  if (mask.window_right >= 0) position = max_of(position, key - mask.window_right);
  if (mask.attention_chunk > 0) position = max_of(position, key - key % mask.attention_chunk);
  const int64_t d = diagonal(mask, seqlen_q, seqlen_k);
  const int64_t row = d >= 0 ? sub_saturated(position, d) : add_saturated(position, -d);
  return min_of(max_of(row, 0), seqlen_q);
}

// The smallest row whose interval begins after `key` >= 0, in [0, seqlen_q].
TANDEM_HD constexpr int64_t first_row_past(const MaskSpec& mask, int64_t key, int64_t seqlen_q, int64_t seqlen_k) {
  int64_t position = INT64_MAX;
  if (mask.window_left >= 0) position = min_of(position, add_saturated(add_saturated(key, mask.window_left), 1));
  if (mask.attention_chunk > 0) {
    position = min_of(position, add_saturated(key - key % mask.attention_chunk, mask.attention_chunk));
  }
  if (position == INT64_MAX) return seqlen_q;
  const int64_t d = diagonal(mask, seqlen_q, seqlen_k);
  const int64_t row = d >= 0 ? sub_saturated(position, d) : add_saturated(position, -d);
  return min_of(max_of(row, 0), seqlen_q);
}

TANDEM_HD constexpr RowRange normalized(RowRange rows) {
  return rows.empty() ? RowRange{} : rows;
}

}  // namespace mask_detail

// The rows that see at least one of the keys [key_begin, key_end), where 0 <= key_begin. (A superset where interval
// arrays narrow the mask further.)
TANDEM_HD constexpr RowRange row_range(const MaskSpec& mask, int64_t key_begin, int64_t key_end, int64_t seqlen_q,
                                       int64_t seqlen_k) {
  key_end = min_of(key_end, seqlen_k);
  if (key_begin >= key_end) return {};
  return mask_detail::normalized({mask_detail::first_row_reaching(mask, key_begin, seqlen_q, seqlen_k),
                                  mask_detail::first_row_past(mask, key_end - 1, seqlen_q, seqlen_k)});
}

// The rows that see every one of the keys [key_begin, key_end): none if that run is empty or leaves the sequence.
TANDEM_HD constexpr RowRange full_row_range(const MaskSpec& mask, int64_t key_begin, int64_t key_end, int64_t seqlen_q,
                                            int64_t seqlen_k) {
  if (key_begin >= key_end || key_end > seqlen_k) return {};
  return mask_detail::normalized({mask_detail::first_row_reaching(mask, key_end - 1, seqlen_q, seqlen_k),
                                  mask_detail::first_row_past(mask, key_begin, seqlen_q, seqlen_k)});
}

// What the rows of a tile see. The extremes leave out the rows that see nothing.
struct TileBounds {
  int64_t min_lo = 0;
  int64_t max_lo = 0;
  int64_t min_hi = 0;
  int64_t max_hi = 0;
  bool any_visible = false;
  bool has_empty = false;  // some row sees nothing: no tile of this m_block is full
};

TANDEM_HD constexpr void include(TileBounds& bounds, RowInterval row) {
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

// The bounds of rows [row_begin, min(row_end, seqlen_q)), in closed form: rows past the end are no rows.
TANDEM_HD constexpr TileBounds tile_bounds(const MaskSpec& mask, int64_t row_begin, int64_t row_end, int64_t seqlen_q,
                                           int64_t seqlen_k) {
  row_end = min_of(row_end, seqlen_q);
  const RowRange seeing = row_range(mask, 0, seqlen_k, seqlen_q, seqlen_k);
  const int64_t first = max_of(row_begin, seeing.begin);
  const int64_t end = min_of(row_end, seeing.end);
  TileBounds bounds;
  if (first < end) {
    include(bounds, row_interval(mask, first, seqlen_q, seqlen_k));
    include(bounds, row_interval(mask, end - 1, seqlen_q, seqlen_k));
    bounds.has_empty = row_begin < first || end < row_end;
  } else {
    bounds.has_empty = row_begin < row_end;
  }
  return bounds;
}

}  // namespace tandem
