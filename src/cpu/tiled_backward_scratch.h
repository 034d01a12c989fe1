#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "cpu/tiled_scratch.h"
#include "cpu/tiled_tiles.h"

namespace tandem {

// Which gradients a visit of a query tile adds to, and for which keys.
struct BackwardVisit {
  int64_t key_begin = 0;  // a multiple of kBlockN
  int64_t key_end = 0;
  bool dq = false;
  bool dk_dv = false;  // accumulator row 0 is key_begin
};

// Keys of a unit of work where dK and dV are computed apart from dQ.
constexpr int64_t kChunkKeys = 12 * kBlockN;
static_assert(kChunkKeys % kBlockN == 0, "a chunk cuts the keys where the whole pass does");

// Bound on the fused accumulators of all threads together: a call takes less than 64 MiB of scratch at any length.
constexpr int64_t kMaxAccumulatorBytes = int64_t{48} << 20;

// What one thread needs for one tile of the backward. Lanes and keys are those of the problem's largest tile.
template <typename T>
struct BackwardScratch {
  T* q_t;     // by panel: (headdim, lanes of the panel)
  T* dout_t;  // by panel: (headdim_v, lanes of the panel)
  T* dq_t;    // by panel: (headdim, lanes of the panel)
  T* q;       // (lanes, ld_q), padded with 0 to whole vectors
  T* dout;    // (lanes, ld_v)
  T* k;       // (keys, ld_q)
  T* v;       // (keys, ld_v)
  T* p_t;     // S^T, then P^T: (keys, ld_lanes)
  T* ds_t;    // dP^T, then dS^T: (keys, ld_lanes)
  int64_t ld_q;
  int64_t ld_v;
  int64_t ld_lanes;
  T* lse;    // (lanes)
  T* delta;  // (lanes)
  T* row;    // one row of a tensor, padded to whole vectors
  T* other_row;
  Position<T>* lo;  // (lanes)
  Position<T>* hi;
  int32_t* hidden;  // (keys + 1)

  T* dk;  // (accumulator_rows, ld_dk)
  T* dv;  // (accumulator_rows, ld_dv)
  int64_t ld_dk;
  int64_t ld_dv;
  int64_t accumulator_rows;
};

// Rows that let each thread hold dK and dV of a whole sequence; 0 if that is too much. The hint is not trusted: a
// longer sequence takes the way that needs kChunkKeys rows only. exec.num_threads has been resolved.
template <typename T>
int64_t fused_accumulator_rows(const AttentionProblem& problem) {
  constexpr int64_t kUnknownLength = 16384;
  int64_t rows = problem.total_k;
  if (problem.packed) rows = std::min(rows, problem.max_seqlen_k > 0 ? problem.max_seqlen_k : kUnknownLength);
  const int64_t row_bytes = (padded_row<T>(problem.headdim) + padded_row<T>(problem.headdim_v)) * int64_t{sizeof(T)};
  return rows > kMaxAccumulatorBytes / problem.exec.num_threads / row_bytes ? 0 : rows;
}

template <typename T>
BackwardScratch<T> lay_out_backward_scratch(const AttentionProblem& problem, Arena& arena) {
  const int64_t lanes = padded_row<T>(max_lanes(problem));
  const int64_t keys = max_tile_keys(problem);
  BackwardScratch<T> s;
  s.ld_q = spread_row<T>(problem.headdim);
  s.ld_v = spread_row<T>(problem.headdim_v);
  s.ld_lanes = spread_row<T>(lanes);
  s.q_t = arena.take<T>(problem.headdim * lanes);
  s.dout_t = arena.take<T>(problem.headdim_v * lanes);
  s.dq_t = arena.take<T>(problem.headdim * lanes);
  s.q = arena.take<T>(lanes * s.ld_q);
  s.dout = arena.take<T>(lanes * s.ld_v);
  s.k = arena.take<T>(keys * s.ld_q);
  s.v = arena.take<T>(keys * s.ld_v);
  s.p_t = arena.take<T>(keys * s.ld_lanes);
  s.ds_t = arena.take<T>(keys * s.ld_lanes);
  s.lse = arena.take<T>(lanes);
  s.delta = arena.take<T>(lanes);
  const int64_t row = padded_row<T>(std::max(problem.headdim, problem.headdim_v));
  s.row = arena.take<T>(row);
  s.other_row = arena.take<T>(row);
  s.lo = arena.take<Position<T>>(lanes);
  s.hi = arena.take<Position<T>>(lanes);
  s.hidden = arena.take<int32_t>(keys + 1);
  s.ld_dk = padded_row<T>(problem.headdim);
  s.ld_dv = padded_row<T>(problem.headdim_v);
  s.accumulator_rows = std::max(fused_accumulator_rows<T>(problem), std::min(kChunkKeys, problem.total_k));
  s.dk = arena.take<T>(s.accumulator_rows * s.ld_dk);
  s.dv = arena.take<T>(s.accumulator_rows * s.ld_dv);
  return s;
}

}  // namespace tandem
