// The query rows of a backward tile: q, dO, LSE and delta of each lane, by rows and by panels.

#if defined(TANDEM_CPU_SIMD_BACKWARD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_BACKWARD_LANES_INL_H_
#undef TANDEM_CPU_SIMD_BACKWARD_LANES_INL_H_
#else
#define TANDEM_CPU_SIMD_BACKWARD_LANES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/simd/tile-inl.h"
#include "cpu/tiled_backward_scratch.h"
#include "cpu/tiled_run.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct BackwardTile {
  const AttentionProblem& problem;
  const SequenceSpan& span;
  QueryTile tile;
  BackwardVisit visit;
  Panels<T> panels;
  LaneIntervals<T> intervals;
  BackwardScratch<T> scratch;

  T* q_t(size_t panel) const { return scratch.q_t + panels.first_lane(panel) * problem.headdim; }
  T* dq_t(size_t panel) const { return scratch.dq_t + panels.first_lane(panel) * problem.headdim; }
  T* dout_t(size_t panel) const { return scratch.dout_t + panels.first_lane(panel) * problem.headdim_v; }
};

// Sums in the order in which the product dP^T = V . dO^T does. So for a row that sees one key, where O = V, delta is dP
// to the last bit and dS is exactly 0.
template <typename T>
T dot_rows(const T* a, const T* b, int64_t count) {
  const hn::CappedTag<T, 1> d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < count; ++i) sum = hn::MulAdd(hn::Set(d, a[i]), hn::Set(d, b[i]), sum);
  return hn::GetLane(sum);
}

template <typename T>
void load_padded_row(const Tensor& tensor, int64_t offset, int64_t columns, T* dst) {
  load_row(tensor.data, tensor.dtype, offset, static_cast<size_t>(columns), dst);
  std::fill(dst + columns, dst + padded_row<T>(columns), T(0));
}

// delta = dot(dO, O) - dLSE; dO is left in `dout`.
template <typename T>
T load_delta(const AttentionProblem& problem, int64_t sequence, int64_t row, int64_t head, double lse, T* dout,
             T* out) {
  load_padded_row(problem.dout, row_offset(problem.dout, sequence, row, head), problem.headdim_v, dout);
  load_row(problem.out.data, problem.out.dtype, row_offset(problem.out, sequence, row, head),
           static_cast<size_t>(problem.headdim_v), out);
  T delta = dot_rows(dout, out, problem.headdim_v);
  if (problem.dlse.present() && std::isfinite(lse)) {
    delta -= static_cast<T>(load_value(problem.dlse, sequence, head, row));
  }
  return delta;
}

// Fills row `lane` of q and dout, and the lane's lse and delta. A row that sees no key is 0 in all of them, whatever
// the tensors hold [7].
template <typename T>
void load_lane(BackwardTile<T>& t, size_t lane) {
  const AttentionProblem& problem = t.problem;
  const BackwardScratch<T>& scratch = t.scratch;
  T* q = scratch.q + lane * static_cast<size_t>(scratch.ld_q);
  T* dout = scratch.dout + lane * static_cast<size_t>(scratch.ld_v);
  const int64_t row = t.span.q_begin + t.tile.lane_row(static_cast<int64_t>(lane));
  const int64_t head = t.tile.lane_head(static_cast<int64_t>(lane));
  double lse = 0;
  if (!t.intervals.empty(lane)) {
    lse = load_value(problem.lse, t.tile.sequence, head, row);
    if (lse == -std::numeric_limits<double>::infinity()) t.intervals.lo[lane] = t.intervals.hi[lane] = 0;
  }
  if (t.intervals.empty(lane)) {
    std::fill_n(q, padded_row<T>(problem.headdim), T(0));
    std::fill_n(dout, padded_row<T>(problem.headdim_v), T(0));
    scratch.lse[lane] = scratch.delta[lane] = 0;
    return;
  }
  load_padded_row(problem.q, row_offset(problem.q, t.tile.sequence, row, head), problem.headdim, q);
  scratch.lse[lane] = static_cast<T>(lse);
  scratch.delta[lane] = load_delta(problem, t.tile.sequence, row, head, lse, dout, scratch.row);
}

template <typename T>
void load_lanes(BackwardTile<T>& t) {
  const BackwardScratch<T>& scratch = t.scratch;
  const size_t lanes = static_cast<size_t>(t.tile.lanes());
  for (size_t lane = 0; lane < lanes; ++lane) load_lane(t, lane);
  std::fill(scratch.lse + lanes, scratch.lse + t.panels.padded_lanes(), T(0));
  std::fill(scratch.delta + lanes, scratch.delta + t.panels.padded_lanes(), T(0));
}

// q and dout, by rows, become panels, by lanes.
template <typename T>
void transpose_lanes(const BackwardTile<T>& t) {
  const BackwardScratch<T>& scratch = t.scratch;
  const size_t lanes = static_cast<size_t>(t.tile.lanes());
  std::fill_n(scratch.row, padded_row<T>(std::max(t.problem.headdim, t.problem.headdim_v)), T(0));
  for (size_t p = 0; p < t.panels.count(); ++p) {
    const size_t width = t.panels.lanes_of(p);
    for (size_t i = 0; i < width; ++i) {
      const size_t lane = t.panels.first_lane(p) + i;
      const T* q = lane < lanes ? scratch.q + lane * static_cast<size_t>(scratch.ld_q) : scratch.row;
      const T* dout = lane < lanes ? scratch.dout + lane * static_cast<size_t>(scratch.ld_v) : scratch.row;
      scatter_column(q, t.problem.headdim, T(1), t.q_t(p) + i, width);
      scatter_column(dout, t.problem.headdim_v, T(1), t.dout_t(p) + i, width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
