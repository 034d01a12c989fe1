#pragma once

#include <cstdint>

#include "core/host_device.h"

// Masks as row intervals: query row i of a sequence sees the keys [lo(i), hi(i)). Everything that decides which keys a
// row, or a tile of rows, sees is written here once, for the CPU backend and for the GPU kernels. (cpu/reference_*
// restates the rule on its own, so that a mistake made here cannot agree with itself.)
namespace tandem {

struct RowInterval {
  int64_t lo = 0;
  int64_t hi = 0;  // empty if hi <= lo; then both are 0
  constexpr bool operator==(const RowInterval& other) const { return lo == other.lo && hi == other.hi; }
};

// The closed-form part of a mask; caller's values, validated. Per-row interval arrays are intersected on top.
struct MaskSpec {
  bool causal = false;
  bool top_left = false;
  int64_t window_left = -1;     // -1: open
  int64_t window_right = -1;    // -1: open
  int64_t attention_chunk = 0;  // 0: none
};

}  // namespace tandem
