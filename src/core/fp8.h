#pragma once

#include <cstdint>

#include "core/host_device.h"

// The arithmetic of fp8 that the host, the CPU backends and the GPU kernels share: scale blocks, the slots of V^T, and
// the rotation of the quantiser. tandem.h describes all of it.
namespace tandem {

constexpr int64_t kScaleBlockRows = 128;
constexpr float kE4m3Max = 448;

// The slots of a group interleave its keys as the accumulators of S do their columns: thread t of a quad holds columns
// 2t and 2t + 1 of each 8, and wants four adjacent ones of the operand that P becomes.
constexpr int64_t kSlotGroup = 16;

// Position of key `key` of a sequence among the slots of that sequence.
template <typename Int>
TANDEM_HD constexpr Int key_slot(Int key) {
  const Int in_group = key % 16;
  return key - in_group + 4 * (in_group % 8 / 2) + 2 * (in_group / 8) + in_group % 2;
}

// The inverse.
template <typename Int>
TANDEM_HD constexpr Int slot_key(Int slot) {
  const Int in_group = slot % 16;
  return slot - in_group + 2 * (in_group / 4) + 8 * (in_group % 4 / 2) + in_group % 2;
}

template <typename Int>
TANDEM_HD constexpr Int dense_slots(Int seqlen) {
  return seqlen / 16 * 16 + (seqlen % 16 != 0 ? 16 : 0);
}

// First slot of sequence `index`, whose first row is `begin`; with the total and the batch, the number of slots. The
// sequences do not overlap: each group of 16 that a sequence shares with its predecessor is made up for by one of its
// own.
template <typename Int>
TANDEM_HD constexpr Int packed_slot_begin(Int begin, Int index) {
  return (begin / 16 + index) * 16;
}

// The sign of a column in the random diagonal: bit column % 64 of splitmix64's output number column / 64.
TANDEM_HD constexpr bool rotation_is_negative(uint64_t seed, int column) {
  uint64_t z = seed + (static_cast<uint64_t>(column / 64) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z = z ^ (z >> 31);
  return (z >> (column % 64) & 1) != 0;
}

constexpr int kHadamardBase = 12;

TANDEM_HD constexpr bool is_power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

// Head dims that a rotation exists for: H is the Sylvester matrix of 2^k, or the Kronecker product of Paley's matrix of
// 12 with it. (12 = 11 + 1, and 11 is a prime of the form 4n + 3.)
TANDEM_HD constexpr bool has_hadamard(int64_t headdim) {
  return is_power_of_two(headdim) || (headdim % kHadamardBase == 0 && is_power_of_two(headdim / kHadamardBase));
}

// Rows and columns of the Sylvester part.
TANDEM_HD constexpr int64_t sylvester_size(int64_t headdim) {
  return is_power_of_two(headdim) ? headdim : headdim / kHadamardBase;
}

// An entry of Paley's matrix: 1 on the diagonal and in row 0, -1 in column 0, and elsewhere whether row - column is a
// square modulo 11.
TANDEM_HD constexpr int paley12(int row, int column) {
  if (row == column || row == 0) return 1;
  if (column == 0) return -1;
  constexpr unsigned kSquares = 1u << 1 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 9;
  return (kSquares >> ((row - column + 11) % 11) & 1) != 0 ? 1 : -1;
}

}  // namespace tandem
