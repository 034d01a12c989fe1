// What forward and backward tiles share: the lanes' row intervals, and moving rows between tensors and scratch.

#if defined(TANDEM_CPU_SIMD_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_TILE_INL_H_
#undef TANDEM_CPU_SIMD_TILE_INL_H_
#else
#define TANDEM_CPU_SIMD_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/block_range.h"
#include "core/mask.h"
#include "core/problem.h"
#include "core/sequence.h"
#include "cpu/simd/convert-inl.h"
#include "cpu/simd/gemm-inl.h"
#include "cpu/tiled_tiles.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lanes of a tile in groups of kBlockVecs vectors, panels, as the register blocks take them. The last may be
// narrower; lanes past the tile's own see no key.
template <typename T>
struct Panels {
  explicit Panels(int64_t lanes) : vecs((static_cast<size_t>(lanes) + width() - 1) / width()) {}

  static size_t width() { return hn::Lanes(Lanes<T>()); }
  static size_t panel_lanes() { return kBlockVecs * width(); }
  size_t count() const { return (vecs + kBlockVecs - 1) / kBlockVecs; }
  size_t first_lane(size_t panel) const { return panel * panel_lanes(); }
  size_t vecs_of(size_t panel) const { return std::min(kBlockVecs, vecs - panel * kBlockVecs); }
  size_t lanes_of(size_t panel) const { return vecs_of(panel) * width(); }
  size_t padded_lanes() const { return vecs * width(); }

  size_t vecs;
};

constexpr size_t kMaxPanels = kBlockM / kBlockVecs;  // with vectors of one lane

// Lane l sees the keys [lo[l], hi[l]).
template <typename T>
struct LaneIntervals {
  Position<T>* lo;
  Position<T>* hi;
  TileBounds all;
  TileBounds panel[kMaxPanels];

  bool empty(size_t lane) const { return hi[lane] <= lo[lane]; }
};

// A softcap far beyond the scores that T can hold changes none of them, and counts as none.
template <typename T>
bool has_softcap(const AttentionProblem& problem) {
  return problem.softcap > 0 && problem.softcap < static_cast<double>(std::numeric_limits<T>::max()) / 1024;
}

// q . k * factor is what tanh is taken of. Finite, also for the smallest softcap: scores of 0 must stay 0.
template <typename T>
T softcap_factor(const AttentionProblem& problem) {
  constexpr double kMax = std::numeric_limits<T>::max();
  return static_cast<T>(std::clamp(problem.softmax_scale / problem.softcap, -kMax, kMax));
}

HWY_INLINE int64_t row_element(const RowTensor& tensor, int64_t sequence, int64_t head, int64_t row) {
  return sequence * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
}
HWY_INLINE int64_t row_offset(const Tensor& tensor, int64_t sequence, int64_t row, int64_t head) {
  return sequence * tensor.batch_stride + row * tensor.row_stride + head * tensor.head_stride;
}

HWY_INLINE RowInterval lane_interval(const AttentionProblem& problem, const SequenceSpan& span, const QueryTile& tile,
                                     int64_t lane) {
  const int64_t row = tile.lane_row(lane);
  RowInterval interval = row_interval(problem.mask, row, span.q_len, span.k_len);
  if (!problem.lo.present() && !problem.hi.present()) return interval;
  int64_t lo = 0;
  int64_t hi = span.k_len;
  const auto read = [&](const RowTensor& tensor) {
    return static_cast<const int32_t*>(
        tensor.data)[row_element(tensor, tile.sequence, tile.lane_head(lane), span.q_begin + row)];
  };
  if (problem.lo.present()) lo = read(problem.lo);
  if (problem.hi.present()) hi = read(problem.hi);
  return intersect(interval, lo, hi);
}

// Fills the intervals of all padded lanes. The tile's bounds are summed up by summarize_intervals() afterwards, so that
// the caller may empty lanes in between.
template <typename T>
void fill_intervals(const AttentionProblem& problem, const SequenceSpan& span, const QueryTile& tile,
                    const Panels<T>& panels, LaneIntervals<T>& intervals) {
  const size_t lanes = static_cast<size_t>(tile.lanes());
  for (size_t lane = 0; lane < panels.padded_lanes(); ++lane) {
    const RowInterval interval =
        lane < lanes ? lane_interval(problem, span, tile, static_cast<int64_t>(lane)) : RowInterval{};
    intervals.lo[lane] = static_cast<Position<T>>(interval.lo);
    intervals.hi[lane] = static_cast<Position<T>>(interval.hi);
  }
}

template <typename T>
void summarize_intervals(const QueryTile& tile, const Panels<T>& panels, LaneIntervals<T>& intervals) {
  const size_t lanes = static_cast<size_t>(tile.lanes());
  intervals.all = {};
  for (size_t p = 0; p < panels.count(); ++p) {
    intervals.panel[p] = {};
    const size_t end = std::min(lanes, panels.first_lane(p) + panels.lanes_of(p));
    for (size_t lane = panels.first_lane(p); lane < end; ++lane) {
      const RowInterval interval{intervals.lo[lane], intervals.hi[lane]};
      include(intervals.panel[p], interval);
      include(intervals.all, interval);
    }
  }
}

// hidden[j] != 0: no lane of the tile sees key key_begin + j. Returns null if every key of a full tile is seen.
// `hidden` has room for keys + 1 values.
template <typename T>
const int32_t* find_hidden_keys(const QueryTile& tile, const LaneIntervals<T>& intervals, int64_t key_begin,
                                int64_t keys, int32_t* hidden) {
  if (classify_tile(intervals.all, key_begin, key_begin + keys) == TileKind::kFull) return nullptr;
  std::fill_n(hidden, keys + 1, 0);
  for (int64_t lane = 0; lane < tile.lanes(); ++lane) {
    const int64_t first = std::clamp<int64_t>(intervals.lo[lane] - key_begin, 0, keys);
    const int64_t end = std::clamp<int64_t>(intervals.hi[lane] - key_begin, 0, keys);
    if (first >= end) continue;
    ++hidden[first];
    --hidden[end];
  }
  int32_t seen_by = 0;
  for (int64_t j = 0; j < keys; ++j) {
    seen_by += hidden[j];
    hidden[j] = seen_by == 0;
  }
  return hidden;
}

// Copies rows of K or V to scratch in the compute type; rows that no lane sees become 0, never loaded [7].
template <typename T>
void load_key_rows(const Tensor& tensor, int64_t offset, int64_t keys, int64_t columns, const int32_t* hidden, T* dst,
                   int64_t ld) {
  for (int64_t j = 0; j < keys; ++j) {
    if (hidden && hidden[j]) {
      std::fill_n(dst + j * ld, columns, T(0));
    } else {
      load_row(tensor.data, tensor.dtype, offset + j * tensor.row_stride, static_cast<size_t>(columns), dst + j * ld);
    }
  }
}

// row[0 .. columns) * factor becomes a column of a panel with `ld` lanes.
template <typename T>
HWY_INLINE void scatter_column(const T* row, int64_t columns, T factor, T* dst, size_t ld) {
  for (int64_t d = 0; d < columns; ++d) dst[static_cast<size_t>(d) * ld] = row[d] * factor;
}
template <typename T>
HWY_INLINE void gather_column(const T* src, size_t ld, int64_t columns, T* row) {
  for (int64_t d = 0; d < columns; ++d) row[d] = src[static_cast<size_t>(d) * ld];
}

// Which of the lanes from `lo`, `hi` on see `key`.
template <class D, typename P>
HWY_INLINE hn::Mask<D> visible_lanes(D d, P key, const P* lo, const P* hi) {
  const hn::Rebind<P, D> dp;
  const auto after_lo = hn::Gt(hn::Set(dp, static_cast<P>(key + 1)), hn::Load(dp, lo));
  const auto before_hi = hn::Gt(hn::Load(dp, hi), hn::Set(dp, key));
  return hn::RebindMask(d, hn::And(after_lo, before_hi));
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
