// The tiled backward, for a tile of query rows that lie in the SIMD lanes (A: scalars that are broadcast):
//
//   S^T  = K . Q^T     P^T  = exp(S^T * scale - LSE)           dQ^T += K^T . dS^T    (headdim x lanes)
//   dP^T = V . dO^T    dS^T = P^T o (dP^T - delta)             dV   += P^T . dO      (keys x headdim_v)
//                                                              dK   += dS^T . Q      (keys x headdim)
//
// Work is shared out in one of two ways. Fused: a unit is a key head of a sequence, all five products are done in one
// pass, dK and dV of all its keys being accumulated in the thread's scratch. Apart: first dK and dV for chunks of keys,
// then dQ for tiles of queries; that recomputes S and dP, 7 products in place of 5, but gives work to any number of
// threads and bounds the scratch. Every gradient is summed in the same order both ways, so its bits are the same, and
// are so for any number of threads.

#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tiled_backward.cpp"
#include "hwy/foreach_target.h"

#include <cmath>
#include <limits>

#include "cpu/simd/backward_lanes-inl.h"
#include "cpu/simd/math-inl.h"
#include "cpu/simd/tile-inl.h"
#include "cpu/tiled_backward.h"
#include "cpu/tiled_backward_scratch.h"
#include "cpu/tiled_run.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
struct GradFactors {
  explicit GradFactors(const AttentionProblem& problem)
      : scale(static_cast<T>(problem.softmax_scale)),
        softcap(static_cast<T>(problem.softcap)),
        cap_factor(has_softcap<T>(problem) ? softcap_factor<T>(problem) : T(0)) {}
  T scale;
  T softcap;
  T cap_factor;
};

// One column of vectors: S and dP become P and dS. x > 0 can only come from rounding; P is at most 1.
template <bool kSoftcap, bool kMasked, typename T>
void grad_column(T* p, T* ds, size_t stride, int64_t key_begin, int64_t keys, const GradFactors<T>& factors,
                 const T* lse_lanes, const T* delta_lanes, const Position<T>* lo, const Position<T>* hi) {
  const Lanes<T> d;
  const auto log2e = hn::Set(d, T(1.4426950408889634074));
  const auto one = hn::Set(d, T(1));
  const auto lse = hn::Load(d, lse_lanes);
  const auto delta = hn::Load(d, delta_lanes);
  const auto scale = hn::Set(d, kSoftcap ? factors.softcap : factors.scale);
  const auto cap_factor = hn::Set(d, factors.cap_factor);
  for (int64_t j = 0; j < keys; ++j, p += stride, ds += stride) {
    auto s = hn::Load(d, p);
    if constexpr (kSoftcap) s = tanh(d, hn::Mul(s, cap_factor));
    auto x = hn::Mul(hn::MulSub(s, scale, lse), log2e);
    x = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Zero(d), x);
    auto prob = exp2(d, x);
    auto grad = hn::Mul(prob, hn::Sub(hn::Load(d, ds), delta));
    if constexpr (kSoftcap) grad = hn::Mul(grad, hn::NegMulAdd(s, s, one));
    if constexpr (kMasked) {
      const auto visible = visible_lanes(d, static_cast<Position<T>>(key_begin + j), lo, hi);
      prob = hn::IfThenElseZero(visible, prob);
      grad = hn::IfThenElseZero(visible, grad);
    }
    hn::Store(prob, d, p);
    hn::Store(grad, d, ds);
  }
}

template <typename T>
void grad_panel(const BackwardTile<T>& t, size_t panel, int64_t key_begin, int64_t keys, bool masked) {
  const BackwardScratch<T>& scratch = t.scratch;
  const GradFactors<T> factors(t.problem);
  const bool softcap = has_softcap<T>(t.problem);
  const auto column = softcap ? (masked ? &grad_column<true, true, T> : &grad_column<true, false, T>)
                              : (masked ? &grad_column<false, true, T> : &grad_column<false, false, T>);
  for (size_t i = 0; i < t.panels.lanes_of(panel); i += t.panels.width()) {
    const size_t lane = t.panels.first_lane(panel) + i;
    column(scratch.p_t + lane, scratch.ds_t + lane, static_cast<size_t>(scratch.ld_lanes), key_begin, keys, factors,
           scratch.lse + lane, scratch.delta + lane, scratch.lo + lane, scratch.hi + lane);
  }
}

// P^T and dS^T of one panel, and its share of dQ^T.
template <typename T>
void visit_panel(const BackwardTile<T>& t, size_t panel, int64_t key_begin, int64_t keys, bool masked) {
  const AttentionProblem& problem = t.problem;
  const BackwardScratch<T>& scratch = t.scratch;
  const size_t lanes = t.panels.lanes_of(panel);
  const size_t vecs = t.panels.vecs_of(panel);
  const size_t ld = static_cast<size_t>(scratch.ld_lanes);
  const size_t ld_q = static_cast<size_t>(scratch.ld_q);
  T* p_t = scratch.p_t + t.panels.first_lane(panel);
  T* ds_t = scratch.ds_t + t.panels.first_lane(panel);
  gemm<ALayout::kDepthAdjacent, T>(
      static_cast<size_t>(keys), vecs,
      {static_cast<size_t>(problem.headdim), scratch.k, ld_q, t.q_t(panel), lanes, p_t, ld, false});
  gemm<ALayout::kDepthAdjacent, T>(static_cast<size_t>(keys), vecs,
                                   {static_cast<size_t>(problem.headdim_v), scratch.v,
                                    static_cast<size_t>(scratch.ld_v), t.dout_t(panel), lanes, ds_t, ld, false});
  grad_panel(t, panel, key_begin, keys, masked);
  if (!t.visit.dq) return;
  gemm<ALayout::kRowsAdjacent, T>(static_cast<size_t>(problem.headdim), vecs,
                                  {static_cast<size_t>(keys), scratch.k, ld_q, ds_t, ld, t.dq_t(panel), lanes, true});
}

template <typename T>
void clear_panel(const BackwardTile<T>& t, size_t panel, int64_t keys) {
  for (int64_t j = 0; j < keys; ++j) {
    const size_t first = static_cast<size_t>(j * t.scratch.ld_lanes) + t.panels.first_lane(panel);
    std::fill_n(t.scratch.p_t + first, t.panels.lanes_of(panel), T(0));
    std::fill_n(t.scratch.ds_t + first, t.panels.lanes_of(panel), T(0));
  }
}

// Lanes [begin, end) take part; those outside see none of the tile's keys.
template <typename T>
void add_dk_dv(const BackwardTile<T>& t, size_t begin, size_t end, int64_t key_begin, int64_t keys) {
  const BackwardScratch<T>& scratch = t.scratch;
  const size_t ld = static_cast<size_t>(scratch.ld_lanes);
  const size_t width = t.panels.width();
  const int64_t row = key_begin - t.visit.key_begin;
  const auto vecs_of = [&](int64_t columns) { return (static_cast<size_t>(columns) + width - 1) / width; };
  gemm<ALayout::kDepthAdjacent, T>(
      static_cast<size_t>(keys), vecs_of(t.problem.headdim_v),
      {end - begin, scratch.p_t + begin, ld, scratch.dout + begin * static_cast<size_t>(scratch.ld_v),
       static_cast<size_t>(scratch.ld_v), scratch.dv + row * scratch.ld_dv, static_cast<size_t>(scratch.ld_dv), true});
  gemm<ALayout::kDepthAdjacent, T>(
      static_cast<size_t>(keys), vecs_of(t.problem.headdim),
      {end - begin, scratch.ds_t + begin, ld, scratch.q + begin * static_cast<size_t>(scratch.ld_q),
       static_cast<size_t>(scratch.ld_q), scratch.dk + row * scratch.ld_dk, static_cast<size_t>(scratch.ld_dk), true});
}

template <typename T>
void visit_keys(const BackwardTile<T>& t, int64_t key_begin, int64_t keys) {
  const AttentionProblem& problem = t.problem;
  const BackwardScratch<T>& scratch = t.scratch;
  const auto kind_of = [&](size_t panel) {
    return classify_tile(t.intervals.panel[panel], key_begin, key_begin + keys);
  };
  size_t first = 0;
  size_t end = t.panels.count();
  while (first < end && kind_of(first) == TileKind::kSkip) ++first;
  while (first < end && kind_of(end - 1) == TileKind::kSkip) --end;
  if (first == end) return;
  const int32_t* hidden = find_hidden_keys(t.tile, t.intervals, key_begin, keys, scratch.hidden);
  const int64_t first_row = t.span.k_begin + key_begin;
  load_key_rows(problem.k, row_offset(problem.k, t.tile.sequence, first_row, t.tile.head_k), keys, problem.headdim,
                hidden, scratch.k, scratch.ld_q);
  load_key_rows(problem.v, row_offset(problem.v, t.tile.sequence, first_row, t.tile.head_k), keys, problem.headdim_v,
                hidden, scratch.v, scratch.ld_v);
  for (size_t p = first; p < end; ++p) {
    if (kind_of(p) == TileKind::kSkip) {
      clear_panel(t, p, keys);
    } else {
      visit_panel(t, p, key_begin, keys, kind_of(p) == TileKind::kPartial);
    }
  }
  if (!t.visit.dk_dv) return;
  const size_t end_lane = t.panels.first_lane(end - 1) + t.panels.lanes_of(end - 1);
  add_dk_dv(t, t.panels.first_lane(first), std::min(end_lane, static_cast<size_t>(t.tile.lanes())), key_begin, keys);
}

template <typename T>
void store_dq(const BackwardTile<T>& t) {
  const AttentionProblem& problem = t.problem;
  const T scale = static_cast<T>(problem.softmax_scale);
  for (size_t lane = 0; lane < static_cast<size_t>(t.tile.lanes()); ++lane) {
    const size_t panel = lane / t.panels.panel_lanes();
    T* row = t.scratch.row;
    if (t.intervals.empty(lane)) {
      std::fill_n(row, problem.headdim, T(0));
    } else {
      gather_column(t.dq_t(panel) + (lane - t.panels.first_lane(panel)), t.panels.lanes_of(panel), problem.headdim,
                    row);
      for (int64_t c = 0; c < problem.headdim; ++c) row[c] *= scale;
    }
    store_row(row, static_cast<size_t>(problem.headdim), problem.dq.data, problem.dq.dtype,
              row_offset(problem.dq, t.tile.sequence, t.span.q_begin + t.tile.lane_row(static_cast<int64_t>(lane)),
                         t.tile.lane_head(static_cast<int64_t>(lane))));
  }
}

template <typename T>
void visit_tile(const TiledRun& run, const QueryTile& tile, const BackwardVisit& visit,
                const BackwardScratch<T>& scratch) {
  BackwardTile<T> t{run.problem, run.spans[tile.sequence], tile, visit, Panels<T>(tile.lanes()), {}, scratch};
  t.intervals.lo = scratch.lo;
  t.intervals.hi = scratch.hi;
  fill_intervals(run.problem, t.span, tile, t.panels, t.intervals);
  summarize_intervals(tile, t.panels, t.intervals);
  const bool sees_any = classify_tile(t.intervals.all, visit.key_begin, visit.key_end) != TileKind::kSkip;
  if (sees_any) {
    load_lanes(t);
    summarize_intervals(tile, t.panels, t.intervals);  // rows with LSE = -inf are empty now
    transpose_lanes(t);
    std::fill_n(scratch.dq_t, t.panels.padded_lanes() * static_cast<size_t>(run.problem.headdim), T(0));
    const TileBounds& bounds = t.intervals.all;
    const int64_t begin = std::max(bounds.min_lo, visit.key_begin);
    const int64_t end = std::min(bounds.max_hi, visit.key_end);
    for (int64_t block = begin / kBlockN; block * kBlockN < end; ++block) {
      const int64_t block_begin = std::max(block * kBlockN, begin);
      visit_keys(t, block_begin, std::min((block + 1) * kBlockN, end) - block_begin);
    }
  }
  if (visit.dq) store_dq(t);
}

// dK and dV rows [key_begin, key_end) of one key head leave the accumulators.
template <typename T>
void store_dk_dv(const TiledRun& run, int64_t sequence, int64_t head_k, const BackwardVisit& visit,
                 const BackwardScratch<T>& scratch) {
  const AttentionProblem& problem = run.problem;
  const T scale = static_cast<T>(problem.softmax_scale);
  for (int64_t key = visit.key_begin; key < visit.key_end; ++key) {
    T* dk = scratch.dk + (key - visit.key_begin) * scratch.ld_dk;
    const T* dv = scratch.dv + (key - visit.key_begin) * scratch.ld_dv;
    const int64_t row = run.spans[sequence].k_begin + key;
    for (int64_t c = 0; c < problem.headdim; ++c) dk[c] *= scale;
    store_row(dk, static_cast<size_t>(problem.headdim), problem.dk.data, problem.dk.dtype,
              row_offset(problem.dk, sequence, row, head_k));
    store_row(dv, static_cast<size_t>(problem.headdim_v), problem.dv.data, problem.dv.dtype,
              row_offset(problem.dv, sequence, row, head_k));
  }
}

// All query tiles of one key head against the keys of `visit`, which has dk_dv set.
template <typename T>
void backward_keys_of(const TiledRun& run, int64_t sequence, int64_t head_k, const BackwardVisit& visit,
                      const BackwardScratch<T>& scratch) {
  const int64_t keys = visit.key_end - visit.key_begin;
  std::fill_n(scratch.dk, keys * scratch.ld_dk, T(0));
  std::fill_n(scratch.dv, keys * scratch.ld_dv, T(0));
  const SequenceTiles tiles(run.problem, run.spans[sequence].q_len);
  for (int64_t i = 0; i < tiles.count(); ++i) visit_tile(run, tiles.at(i, sequence, head_k), visit, scratch);
  store_dk_dv(run, sequence, head_k, visit, scratch);
}

void backward_keys(const TiledRun& run, int64_t sequence, int64_t head_k, const BackwardVisit& visit, void* scratch) {
  Arena arena(scratch);
  if (run.problem.dtype == DType::kFp64) {
    backward_keys_of(run, sequence, head_k, visit, lay_out_backward_scratch<double>(run.problem, arena));
  } else {
    backward_keys_of(run, sequence, head_k, visit, lay_out_backward_scratch<float>(run.problem, arena));
  }
}

void backward_queries(const TiledRun& run, const QueryTile& tile, void* scratch) {
  Arena arena(scratch);
  const BackwardVisit visit{0, run.spans[tile.sequence].k_len, true, false};
  if (run.problem.dtype == DType::kFp64) {
    visit_tile(run, tile, visit, lay_out_backward_scratch<double>(run.problem, arena));
  } else {
    visit_tile(run, tile, visit, lay_out_backward_scratch<float>(run.problem, arena));
  }
}

// dsink_h = - sum over all rows of exp(sink_h - LSE) * delta. A row that sees no key has LSE = sink and O = 0.
template <typename T>
double dsink_of(const TiledRun& run, int64_t head, const BackwardScratch<T>& scratch) {
  const AttentionProblem& problem = run.problem;
  const double sink = load_value(problem.sink, head);
  double sum = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const SequenceSpan& span = run.spans[b];
    for (int64_t row = 0; row < span.q_len; ++row) {
      const double lse = load_value(problem.lse, b, head, span.q_begin + row);
      if (std::isinf(lse)) continue;
      const QueryTile tile{b, 0, head, 1, row, 1};
      double delta;
      if (lane_interval(problem, span, tile, 0).empty()) {
        delta = problem.dlse.present() ? -load_value(problem.dlse, b, head, span.q_begin + row) : 0;
      } else {
        delta = load_delta(problem, b, span.q_begin + row, head, lse, scratch.row, scratch.other_row);
      }
      sum -= std::exp(sink - lse) * delta;
    }
  }
  return sum;
}

double backward_sink(const TiledRun& run, int64_t head, void* scratch) {
  Arena arena(scratch);
  if (run.problem.dtype == DType::kFp64) {
    return dsink_of(run, head, lay_out_backward_scratch<double>(run.problem, arena));
  }
  return dsink_of(run, head, lay_out_backward_scratch<float>(run.problem, arena));
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "core/work_tiles.h"
#include "cpu/threads.h"

namespace tandem {

HWY_EXPORT(backward_keys);
HWY_EXPORT(backward_queries);
HWY_EXPORT(backward_sink);

namespace {

AttentionProblem with_threads_resolved(AttentionProblem problem) {
  problem.exec.num_threads = resolve_num_threads(problem.exec.num_threads);
  return problem;
}

TiledRun lay_out(const AttentionProblem& problem, Arena& arena) {
  Arena one_thread(nullptr);
  if (problem.dtype == DType::kFp64) {
    lay_out_backward_scratch<double>(problem, one_thread);
  } else {
    lay_out_backward_scratch<float>(problem, one_thread);
  }
  return lay_out_run(problem, problem.exec.num_threads, one_thread.bytes(), arena);
}

// Fused if every sequence's keys fit into the accumulators and the threads get even shares of whole key heads: the last
// round of units may leave threads idle for as long as the two extra products would take.
bool choose_fused(const TiledRun& run, int64_t accumulator_rows) {
  for (int64_t b = 0; b < run.problem.batch; ++b) {
    if (run.spans[b].k_len > accumulator_rows) return false;
  }
  const int64_t units = run.problem.batch * run.problem.nheads_k;
  return 5 * ceil_div(units, run.num_threads) * run.num_threads <= 7 * units;
}

void run_fused(const TiledRun& run) {
  const int64_t nheads_k = run.problem.nheads_k;
  const auto keys_function = HWY_DYNAMIC_DISPATCH(backward_keys);
  parallel_for(run.num_threads, run.problem.batch * nheads_k, [&](int64_t index, int thread) {
    const int64_t sequence = index / nheads_k;
    const BackwardVisit visit{0, run.spans[sequence].k_len, true, true};
    keys_function(run, sequence, index % nheads_k, visit, run.scratch_of(thread));
  });
}

void run_apart(const TiledRun& run) {
  const AttentionProblem& problem = run.problem;
  const auto keys_function = HWY_DYNAMIC_DISPATCH(backward_keys);
  const auto chunks_of = [](const SequenceSpan& span) { return ceil_div(span.k_len, kChunkKeys); };
  parallel_for(run.num_threads, count_units(run, chunks_of), [&](int64_t index, int thread) {
    const int64_t sequence = find_sequence(run.first_unit, problem.batch, index);
    const int64_t unit = index - run.first_unit[sequence];
    const int64_t chunks = chunks_of(run.spans[sequence]);
    const int64_t key_begin = unit % chunks * kChunkKeys;
    const BackwardVisit visit{key_begin, std::min(key_begin + kChunkKeys, run.spans[sequence].k_len), false, true};
    keys_function(run, sequence, unit / chunks, visit, run.scratch_of(thread));
  });
  const auto queries_function = HWY_DYNAMIC_DISPATCH(backward_queries);
  const auto tiles_of = [&](const SequenceSpan& span) { return SequenceTiles(problem, span.q_len).count(); };
  parallel_for(run.num_threads, count_units(run, tiles_of), [&](int64_t index, int thread) {
    const int64_t sequence = find_sequence(run.first_unit, problem.batch, index);
    const SequenceTiles tiles(problem, run.spans[sequence].q_len);
    const int64_t unit = index - run.first_unit[sequence];
    queries_function(run, tiles.at(unit % tiles.count(), sequence, unit / tiles.count()), run.scratch_of(thread));
  });
}

void write_rows_outside(const TiledRun& run) {
  const AttentionProblem& problem = run.problem;
  for_each_query_gap(run, [&](int64_t sequence, int64_t begin, int64_t end) {
    zero_rows(problem.dq, sequence, begin, end, problem.nheads_q, problem.headdim);
  });
  for_each_key_gap(run, [&](int64_t sequence, int64_t begin, int64_t end) {
    zero_rows(problem.dk, sequence, begin, end, problem.nheads_k, problem.headdim);
    zero_rows(problem.dv, sequence, begin, end, problem.nheads_k, problem.headdim_v);
  });
}

int64_t accumulator_rows(const AttentionProblem& problem) {
  Arena arena(nullptr);
  return problem.dtype == DType::kFp64 ? lay_out_backward_scratch<double>(problem, arena).accumulator_rows
                                       : lay_out_backward_scratch<float>(problem, arena).accumulator_rows;
}

}  // namespace

uint64_t tiled_backward_workspace_bytes(const AttentionProblem& asked) {
  Arena arena(nullptr);
  lay_out(with_threads_resolved(asked), arena);
  return arena.bytes();
}

void run_tiled_backward(const AttentionProblem& asked) {
  const AttentionProblem problem = with_threads_resolved(asked);
  Arena arena(problem.exec.workspace);
  const TiledRun run = lay_out(problem, arena);
  read_sequence_spans(problem, run.spans);
  write_rows_outside(run);
  if (choose_fused(run, accumulator_rows(problem))) {
    run_fused(run);
  } else {
    run_apart(run);
  }
  if (!problem.sink.present()) return;
  const auto sink_function = HWY_DYNAMIC_DISPATCH(backward_sink);
  parallel_for(run.num_threads, problem.nheads_q, [&](int64_t head, int thread) {
    store_value(problem.dsink, head, sink_function(run, head, run.scratch_of(thread)));
  });
}

}  // namespace tandem

#endif  // HWY_ONCE
