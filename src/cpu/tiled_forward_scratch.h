#pragma once

#include <algorithm>
#include <cstdint>

#include "core/fp8.h"
#include "core/problem.h"
#include "cpu/tiled_scratch.h"
#include "cpu/tiled_tiles.h"

namespace tandem {

// What one thread needs for one forward tile. Lanes and keys are those of the problem's largest tile.
template <typename T>
struct ForwardScratch {
  T* q_t;  // by panel: (headdim, lanes of the panel)
  T* o_t;  // by panel: (headdim_v, lanes of the panel)
  T* s;    // S^T, then P^T, of one panel: (keys, lanes of the panel)
  T* k;    // (keys, ld_k)
  T* v;    // (keys, ld_v)
  int64_t ld_k;
  int64_t ld_v;
  T* row_max;       // (lanes), in score units
  T* row_sum;       // (lanes)
  T* row;           // one row of a tensor
  Position<T>* lo;  // (lanes)
  Position<T>* hi;
  int32_t* hidden;  // (keys + 1)
  T* slots;         // a column of V^T
};

template <typename T>
ForwardScratch<T> lay_out_forward_scratch(const AttentionProblem& problem, Arena& arena) {
  const int64_t lanes = padded_row<T>(max_lanes(problem));
  const int64_t keys = max_tile_keys(problem);
  ForwardScratch<T> scratch;
  scratch.ld_k = spread_row<T>(problem.headdim);
  scratch.ld_v = spread_row<T>(problem.headdim_v);
  scratch.q_t = arena.take<T>(problem.headdim * lanes);
  scratch.o_t = arena.take<T>(problem.headdim_v * lanes);
  scratch.s = arena.take<T>(keys * std::min(lanes, kMaxPanelLanes<T>));
  scratch.k = arena.take<T>(keys * scratch.ld_k);
  scratch.v = arena.take<T>(keys * scratch.ld_v);
  scratch.row_max = arena.take<T>(lanes);
  scratch.row_sum = arena.take<T>(lanes);
  scratch.row = arena.take<T>(std::max(problem.headdim, problem.headdim_v));
  scratch.lo = arena.take<Position<T>>(lanes);
  scratch.hi = arena.take<Position<T>>(lanes);
  scratch.hidden = arena.take<int32_t>(keys + 1);
  scratch.slots = arena.take<T>(problem.v_transposed ? keys + 2 * kSlotGroup : 0);
  return scratch;
}

}  // namespace tandem
