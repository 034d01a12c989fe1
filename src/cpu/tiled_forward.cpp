// The tiled forward: online softmax over n_blocks, for a tile of query rows that lie in the SIMD lanes.
//
//   S^T = K . Q^T       (keys x lanes)         row_max, row_sum: one value a lane, no horizontal sums
//   P^T = exp(S^T - row_max)                     in e4m3: rounded to it, after it is added to row_sum
//   O^T = O^T * rescale + V^T . P^T            (headdim_v x lanes)

#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tiled_forward.cpp"
#include "hwy/foreach_target.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu/simd/fp8-inl.h"
#include "cpu/simd/math-inl.h"
#include "cpu/simd/tile-inl.h"
#include "cpu/tiled_forward.h"
#include "cpu/tiled_forward_scratch.h"
#include "cpu/tiled_run.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How S in scratch relates to the caller's scores: S_caller = S * unit, exp(S_caller) = 2^(S * unit_log2). The factors
// are positive: masked scores are -inf and must stay so. (The maximum is subtracted before the multiplication; folding
// both into one multiply-add would lose all digits of huge scores.)
template <typename T>
struct ScoreUnits {
  explicit ScoreUnits(const AttentionProblem& problem) {
    constexpr double kLog2e = 1.4426950408889634074;
    const double scale = problem.softmax_scale;
    if (has_softcap<T>(problem)) {
      cap_factor = softcap_factor<T>(problem);
      unit = problem.softcap;
    } else {
      // A scale below the normal range of T, 0 too, is split: a larger unit, and a factor of Q that is not 1 or -1.
      unit = std::max<double>(std::abs(scale), std::numeric_limits<T>::min());
      q_factor = static_cast<T>(scale / unit);
    }
    const double log2 = unit * kLog2e;
    unit_log2 = static_cast<T>(std::clamp<double>(log2, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }

  T q_factor = 1;    // multiplies Q
  T cap_factor = 0;  // with a softcap: S = tanh(q . k * cap_factor)
  double unit = 1;
  T unit_log2 = 1;
};

template <typename T>
struct ForwardTile {
  const AttentionProblem& problem;
  const SequenceSpan& span;
  QueryTile tile;
  ScoreUnits<T> units;
  Panels<T> panels;
  LaneIntervals<T> intervals;
  ForwardScratch<T> scratch;

  T* q_t(size_t panel) const { return scratch.q_t + panels.first_lane(panel) * problem.headdim; }
  T* o_t(size_t panel) const { return scratch.o_t + panels.first_lane(panel) * problem.headdim_v; }
};

template <typename T>
void load_q(const ForwardTile<T>& t) {
  const int64_t headdim = t.problem.headdim;
  for (size_t p = 0; p < t.panels.count(); ++p) {
    for (size_t i = 0; i < t.panels.lanes_of(p); ++i) {
      const int64_t lane = static_cast<int64_t>(t.panels.first_lane(p) + i);
      T factor = t.units.q_factor;
      if (lane < t.tile.lanes()) {
        const int64_t row = t.span.q_begin + t.tile.lane_row(lane);
        const int64_t offset = row_offset(t.problem.q, t.tile.sequence, row, t.tile.lane_head(lane));
        load_row(t.problem.q.data, t.problem.q.dtype, offset, static_cast<size_t>(headdim), t.scratch.row);
        factor *= row_scale(t.problem.q_scale, t.tile.sequence, t.tile.lane_head(lane), t.tile.lane_row(lane));
      } else {
        std::fill_n(t.scratch.row, headdim, T(0));
      }
      scatter_column(t.scratch.row, headdim, factor, t.q_t(p) + i, t.panels.lanes_of(p));
    }
  }
}

template <typename T>
void apply_softcap(T factor, T* s, size_t count) {
  const Lanes<T> d;
  const auto f = hn::Set(d, factor);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::Store(tanh(d, hn::Mul(hn::Load(d, s + i), f)), d, s + i);
}

// One column of vectors of S, `keys` rows that lie `stride` apart.
template <typename T>
void mask_column(T* s, size_t stride, int64_t key_begin, int64_t keys, const Position<T>* lo, const Position<T>* hi) {
  const Lanes<T> d;
  const auto hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int64_t j = 0; j < keys; ++j, s += stride) {
    const auto visible = visible_lanes(d, static_cast<Position<T>>(key_begin + j), lo, hi);
    hn::Store(hn::IfThenElse(visible, hn::Load(d, s), hidden), d, s);
  }
}

template <typename T, class V = hn::Vec<Lanes<T>>>
V column_max(const T* s, size_t stride, int64_t keys, V start) {
  const Lanes<T> d;
  V max[4] = {start, start, start, start};  // four chains hide the latency of one
  int64_t j = 0;
  for (; j + 4 <= keys; j += 4, s += 4 * stride) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) max[i] = hn::Max(hn::Load(d, s + i * stride), max[i]);
  }
  for (; j < keys; ++j, s += stride) max[0] = hn::Max(hn::Load(d, s), max[0]);
  return hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3]));
}

// S becomes P = exp(S - max), in e4m3 rounded to it; returns the sum over keys of what it was before.
template <bool kRoundP, typename T, class V = hn::Vec<Lanes<T>>>
V exponentiate_column(T* s, size_t stride, int64_t keys, V max, V unit_log2) {
  const Lanes<T> d;
  V sum = hn::Zero(d);
  for (int64_t j = 0; j < keys; ++j, s += stride) {
    const V p = exp2(d, hn::Mul(hn::Sub(hn::Load(d, s), max), unit_log2));
    if constexpr (kRoundP) {
      hn::Store(round_probability(d, p), d, s);
    } else {
      hn::Store(p, d, s);
    }
    sum = hn::Add(sum, p);
  }
  return sum;
}

template <class V>
V exponentiate(const AttentionProblem& problem, float* s, size_t stride, int64_t keys, V max, V unit_log2) {
  return problem.dtype == DType::kE4m3 ? exponentiate_column<true>(s, stride, keys, max, unit_log2)
                                       : exponentiate_column<false>(s, stride, keys, max, unit_log2);
}
template <class V>
V exponentiate(const AttentionProblem&, double* s, size_t stride, int64_t keys, V max, V unit_log2) {
  return exponentiate_column<false>(s, stride, keys, max, unit_log2);
}

// S of one panel becomes P; row_max and row_sum move on. O is rescaled where a maximum grew.
template <typename T>
void softmax_step(const ForwardTile<T>& t, size_t panel, int64_t key_begin, int64_t keys) {
  const Lanes<T> d;
  const size_t lanes = t.panels.lanes_of(panel);
  const bool masked = classify_tile(t.intervals.panel[panel], key_begin, key_begin + keys) != TileKind::kFull;
  const auto unit_log2 = hn::Set(d, t.units.unit_log2);
  const auto hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
  if (has_softcap<T>(t.problem)) {
    apply_softcap(t.units.cap_factor, t.scratch.s, static_cast<size_t>(keys) * lanes);
  }
  for (size_t i = 0; i < lanes; i += hn::Lanes(d)) {
    const size_t lane = t.panels.first_lane(panel) + i;
    T* s = t.scratch.s + i;
    if (masked) mask_column(s, lanes, key_begin, keys, t.intervals.lo + lane, t.intervals.hi + lane);
    const auto old_max = hn::Load(d, t.scratch.row_max + lane);
    const auto new_max = column_max(s, lanes, keys, old_max);
    // A lane that has seen no key has the maximum -inf, and -inf - -inf is NaN: subtract 0 there.
    const auto base = hn::IfThenElse(hn::Eq(new_max, hidden), hn::Zero(d), new_max);
    const auto rescale = exp2(d, hn::Mul(hn::Sub(old_max, base), unit_log2));
    const auto sum = exponentiate(t.problem, s, lanes, keys, base, unit_log2);
    hn::Store(new_max, d, t.scratch.row_max + lane);
    hn::Store(hn::MulAdd(hn::Load(d, t.scratch.row_sum + lane), rescale, sum), d, t.scratch.row_sum + lane);
    if (hn::AllTrue(d, hn::Eq(rescale, hn::Set(d, T(1))))) continue;
    T* o = t.o_t(panel) + i;
    for (int64_t c = 0; c < t.problem.headdim_v; ++c, o += lanes) hn::Store(hn::Mul(hn::Load(d, o), rescale), d, o);
  }
}

// Copies K and V of some keys to scratch.
template <typename T>
void load_keys(const ForwardTile<T>& t, int64_t key_begin, int64_t keys) {
  const AttentionProblem& problem = t.problem;
  const ForwardScratch<T>& scratch = t.scratch;
  const int32_t* hidden = find_hidden_keys(t.tile, t.intervals, key_begin, keys, scratch.hidden);
  const int64_t first_row = t.span.k_begin + key_begin;
  load_key_rows(problem.k, row_offset(problem.k, t.tile.sequence, first_row, t.tile.head_k), keys, problem.headdim,
                hidden, scratch.k, scratch.ld_k);
  if (!problem.v_transposed) {
    load_key_rows(problem.v, row_offset(problem.v, t.tile.sequence, first_row, t.tile.head_k), keys, problem.headdim_v,
                  hidden, scratch.v, scratch.ld_v);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (problem.v_transposed) {
      load_transposed_rows(problem, t.span, t.tile.sequence, t.tile.head_k, key_begin, keys, hidden, scratch.slots,
                           scratch.v, scratch.ld_v);
    }
    scale_key_rows(problem.k_scale, t.tile.sequence, t.tile.head_k, key_begin, keys, problem.headdim, hidden, scratch.k,
                   scratch.ld_k);
    scale_key_rows(problem.v_scale, t.tile.sequence, t.tile.head_k, key_begin, keys, problem.headdim_v, hidden,
                   scratch.v, scratch.ld_v);
  }
}

template <typename T>
void visit_keys(const ForwardTile<T>& t, int64_t key_begin, int64_t keys) {
  const AttentionProblem& problem = t.problem;
  const ForwardScratch<T>& scratch = t.scratch;
  load_keys(t, key_begin, keys);
  for (size_t p = 0; p < t.panels.count(); ++p) {
    if (classify_tile(t.intervals.panel[p], key_begin, key_begin + keys) == TileKind::kSkip) continue;
    const size_t lanes = t.panels.lanes_of(p);
    gemm<ALayout::kDepthAdjacent, T>(static_cast<size_t>(keys), t.panels.vecs_of(p),
                                     {static_cast<size_t>(problem.headdim), scratch.k,
                                      static_cast<size_t>(scratch.ld_k), t.q_t(p), lanes, scratch.s, lanes, false});
    softmax_step(t, p, key_begin, keys);
    gemm<ALayout::kRowsAdjacent, T>(static_cast<size_t>(problem.headdim_v), t.panels.vecs_of(p),
                                    {static_cast<size_t>(keys), scratch.v, static_cast<size_t>(scratch.ld_v), scratch.s,
                                     lanes, t.o_t(p), lanes, true});
  }
}

// The end of a row, in double: once a row, and exact where scores are huge.
struct RowResult {
  double o_factor;  // O = O^T * o_factor; 0 for an empty row
  double lse;
};

template <typename T>
RowResult finish_row(const ForwardTile<T>& t, int64_t lane) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double sink = t.problem.sink.present() ? load_value(t.problem.sink, t.tile.lane_head(lane)) : -kInfinity;
  const double sum = static_cast<double>(t.scratch.row_sum[lane]);
  if (t.intervals.empty(static_cast<size_t>(lane)) || sum == 0) return {0, sink};
  const double row_max = static_cast<double>(t.scratch.row_max[lane]) * t.units.unit;
  if (sink == -kInfinity) return {1 / sum, row_max + std::log(sum)};
  const double max = std::max(row_max, sink);
  const double weight = std::exp(row_max - max);
  const double denominator = sum * weight + std::exp(sink - max);
  return {weight / denominator, max + std::log(denominator)};
}

template <typename T>
void store_tile(const ForwardTile<T>& t) {
  const AttentionProblem& problem = t.problem;
  for (int64_t lane = 0; lane < t.tile.lanes(); ++lane) {
    const size_t panel = static_cast<size_t>(lane) / t.panels.panel_lanes();
    const T* column = t.o_t(panel) + (static_cast<size_t>(lane) - t.panels.first_lane(panel));
    const int64_t row = t.span.q_begin + t.tile.lane_row(lane);
    const int64_t head = t.tile.lane_head(lane);
    const RowResult result = finish_row(t, lane);
    if (result.o_factor == 0) {
      std::fill_n(t.scratch.row, problem.headdim_v, T(0));
    } else {
      gather_column(column, t.panels.lanes_of(panel), problem.headdim_v, t.scratch.row);
      for (int64_t c = 0; c < problem.headdim_v; ++c) {
        t.scratch.row[c] = static_cast<T>(static_cast<double>(t.scratch.row[c]) * result.o_factor);
      }
    }
    store_row(t.scratch.row, static_cast<size_t>(problem.headdim_v), problem.out.data, problem.out.dtype,
              row_offset(problem.out, t.tile.sequence, row, head));
    if (problem.lse.present()) store_value(problem.lse, t.tile.sequence, head, row, result.lse);
  }
}

template <typename T>
void forward_tile_of(const TiledRun& run, const QueryTile& tile, const ForwardScratch<T>& scratch) {
  const AttentionProblem& problem = run.problem;
  ForwardTile<T> t{problem, run.spans[tile.sequence], tile, ScoreUnits<T>(problem), Panels<T>(tile.lanes()), {},
                   scratch};
  t.intervals.lo = scratch.lo;
  t.intervals.hi = scratch.hi;
  fill_intervals(problem, t.span, tile, t.panels, t.intervals);
  summarize_intervals(tile, t.panels, t.intervals);
  const size_t lanes = t.panels.padded_lanes();
  std::fill_n(scratch.row_max, lanes, -std::numeric_limits<T>::infinity());
  std::fill_n(scratch.row_sum, lanes, T(0));
  if (t.intervals.all.any_visible) {
    load_q(t);
    std::fill_n(scratch.o_t, lanes * static_cast<size_t>(problem.headdim_v), T(0));
    const TileBounds& bounds = t.intervals.all;
    for (int64_t block = bounds.min_lo / kBlockN; block * kBlockN < bounds.max_hi; ++block) {
      const int64_t begin = std::max(block * kBlockN, bounds.min_lo);
      const int64_t end = std::min((block + 1) * kBlockN, bounds.max_hi);
      visit_keys(t, begin, end - begin);
    }
  }
  store_tile(t);
}

void forward_tile(const TiledRun& run, const QueryTile& tile, void* scratch) {
  Arena arena(scratch);
  if (run.problem.dtype == DType::kFp64) {
    forward_tile_of(run, tile, lay_out_forward_scratch<double>(run.problem, arena));
  } else {
    forward_tile_of(run, tile, lay_out_forward_scratch<float>(run.problem, arena));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "core/work_tiles.h"
#include "cpu/threads.h"

namespace tandem {

HWY_EXPORT(forward_tile);

namespace {

TiledRun lay_out(const AttentionProblem& problem, int num_threads, Arena& arena) {
  Arena one_thread(nullptr);
  if (problem.dtype == DType::kFp64) {
    lay_out_forward_scratch<double>(problem, one_thread);
  } else {
    lay_out_forward_scratch<float>(problem, one_thread);
  }
  return lay_out_run(problem, num_threads, one_thread.bytes(), arena);
}

void write_rows_outside(const TiledRun& run) {
  const AttentionProblem& problem = run.problem;
  for_each_query_gap(run, [&](int64_t sequence, int64_t begin, int64_t end) {
    zero_rows(problem.out, sequence, begin, end, problem.nheads_q, problem.headdim_v);
    if (!problem.lse.present()) return;
    for (int64_t head = 0; head < problem.nheads_q; ++head) {
      for (int64_t row = begin; row < end; ++row) {
        store_value(problem.lse, sequence, head, row, -std::numeric_limits<double>::infinity());
      }
    }
  });
}

}  // namespace

uint64_t tiled_forward_workspace_bytes(const AttentionProblem& problem) {
  Arena arena(nullptr);
  lay_out(problem, resolve_num_threads(problem.exec.num_threads), arena);
  return arena.bytes();
}

void run_tiled_forward(const AttentionProblem& problem) {
  Arena arena(problem.exec.workspace);
  const TiledRun run = lay_out(problem, resolve_num_threads(problem.exec.num_threads), arena);
  read_sequence_spans(problem, run.spans);
  write_rows_outside(run);
  const int64_t units =
      count_units(run, [&](const SequenceSpan& span) { return SequenceTiles(problem, span.q_len).count(); });
  const auto tile_function = HWY_DYNAMIC_DISPATCH(forward_tile);
  parallel_for(run.num_threads, units, [&](int64_t index, int thread) {
    const int64_t sequence = find_sequence(run.first_unit, problem.batch, index);
    const SequenceTiles tiles(problem, run.spans[sequence].q_len);
    const int64_t unit = index - run.first_unit[sequence];
    tile_function(run, tiles.at(unit % tiles.count(), sequence, unit / tiles.count()), run.scratch_of(thread));
  });
}

}  // namespace tandem

#endif  // HWY_ONCE
