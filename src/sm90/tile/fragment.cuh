#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/tile/smem_layout.cuh"

// What a thread holds of a 64 x N accumulator of its warpgroup: element i lies in row fragment_row(half_of(i)) and
// column fragment_column(i). A thread has two rows, halves 0 and 1. docs/HOPPER.md draws it.
namespace tandem::sm90 {

// This thread in its warpgroup: what the layout depends on, worked out when it is needed.
struct FragmentThread {
  int warp, lane;
};
TANDEM_DEVICE FragmentThread fragment_thread() {
  const auto rank =
      static_cast<uint32_t>(ptx::thread_rank_anew());  // signed, / and % would take five instructions each
  return {static_cast<int>(rank / ptx::kWarpThreads % 4), static_cast<int>(rank % ptx::kWarpThreads)};
}

constexpr TANDEM_HD int half_of(int element) {
  return element / 2 % 2;
}
TANDEM_DEVICE int fragment_row(int half) {
  const FragmentThread thread = fragment_thread();
  return 16 * thread.warp + thread.lane / 4 + 8 * half;
}
// Column of element i: this thread's first column, and a constant.
TANDEM_DEVICE int fragment_first_column() {
  return 2 * (ptx::lane_index() % 4);
}
// The same, computed at each call: for what is rare, so that it takes no register between.
TANDEM_DEVICE int fragment_first_column_anew() {
  return 2 * (ptx::thread_rank_anew() % 4);
}
constexpr TANDEM_HD int fragment_column_offset(int element) {
  return 8 * (element / 4) + element % 2;
}

template <int kRegisters>
TANDEM_DEVICE void clear(float (&accumulator)[kRegisters]) {
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) accumulator[i] = 0.0f;
}

// Two values rounded to the element type, side by side.
template <typename Element>
TANDEM_DEVICE uint32_t pack2(float low, float high);
template <>
TANDEM_DEVICE uint32_t pack2<Bf16>(float low, float high) {
  return ptx::pack_bf16x2(low, high);
}
template <>
TANDEM_DEVICE uint32_t pack2<Fp16>(float low, float high) {
  return ptx::pack_f16x2(low, high);
}

// The A fragment of k-step `step` of the next product, 16-bit: it takes columns 16 step to 16 step + 15, which the
// accumulator's layout already has in the right threads.
template <typename Element, int kRegisters>
TANDEM_DEVICE void pack_a_fragment(uint32_t (&fragment)[4], const float (&accumulator)[kRegisters], int step) {
  TANDEM_UNROLL
  for (int r = 0; r < 4; ++r) {
    const int i = 8 * step + 2 * r;
    fragment[r] = pack2<Element>(accumulator[i], accumulator[i + 1]);
  }
}

// All k-steps from `kFirst` on.
template <typename Element, int kFirst, int kRegisters>
TANDEM_DEVICE void pack_a_fragments(uint32_t (&fragments)[kRegisters / 8][4], const float (&accumulator)[kRegisters]) {
  TANDEM_UNROLL
  for (int step = kFirst; step < kRegisters / 8; ++step) {
    pack_a_fragment<Element>(fragments[step], accumulator, step);
  }
}

// Rounds an accumulator's first columns, half h times scale[h], into `Tile` (64 rows of 16-bit elements) at `address`.
template <typename Element, typename Tile, int kRegisters>
TANDEM_DEVICE void store_accumulator(uint32_t address, const float (&accumulator)[kRegisters],
                                     const float (&scale)[2]) {
  static_assert(Tile::kRows == kFragmentRows && Tile::kRowBytes <= kRegisters * 4);
  const FragmentThread thread = fragment_thread();
  const int row = 16 * thread.warp + thread.lane % 16;  // stmatrix: matrices 0, 1 are rows 0-7, 8-15; 2, 3 the next
  const int byte = thread.lane / 16 * 16;               // 8 columns of them
  TANDEM_UNROLL
  for (int step = 0; step < Tile::kRowBytes / 32; ++step) {
    uint32_t packed[4];
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int i = 8 * step + 2 * r;
      packed[r] = pack2<Element>(accumulator[i] * scale[half_of(i)], accumulator[i + 1] * scale[half_of(i)]);
    }
    ptx::stmatrix_x4(address + Tile::chunk_offset(row, step * 32 + byte), packed);
  }
}

}  // namespace tandem::sm90
