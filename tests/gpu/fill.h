#pragma once

#include <cstdint>

#include "device_view.h"

namespace tandem::gpu_test {

// Scores that a softmax must get right, besides those of normal values.
enum class Pattern {
  kNormal,
  kPeaked,    // of a standard deviation of 12
  kHuge,      // of tens of thousands
  kRampUp,    // growing by 300 from the first key to the last
  kRampDown,  // falling by 300
  kSpikes     // three steps: 330 at the first keys, 160, 0; and single keys 90 above their neighbours
};
constexpr Pattern kPatterns[] = {Pattern::kNormal, Pattern::kPeaked,   Pattern::kHuge,
                                 Pattern::kRampUp, Pattern::kRampDown, Pattern::kSpikes};

// Which inputs hold wild values: NaN, infinities, numbers thousands of times larger. Nobody else may notice [7, 12].
enum class Wild {
  kNothing,
  kRows,      // every second query row of a head, by chance
  kSequences  // every second sequence: Q, K and V
};

struct Fill {
  uint64_t seed = 1;
  Pattern pattern = Pattern::kNormal;
  bool infinite_poison = false;  // what no row may see holds infinities instead of NaN
  Wild wild = Wild::kNothing;
};

TANDEM_TEST_HD inline uint64_t hash_of(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

TANDEM_TEST_HD inline bool is_wild(const Fill& fill, int64_t sequence, int64_t head, int64_t row) {
  if (fill.wild == Wild::kSequences) return sequence % 2 == 1;
  return fill.wild == Wild::kRows &&
         hash_of(static_cast<uint64_t>(sequence * 1000003 + head), static_cast<uint64_t>(row)) % 2 == 1;
}

// Fills q, k and v. Guards, rows that belong to no sequence and keys that no row sees are poisoned.
void fill_inputs(const DeviceView& view, const Fill& fill);

// V^T of e4m3: (batch, heads, headdim_v, slots), in which `slots` are apart. Only keys that a sequence uses are
// written.
void transpose_v(const DeviceView& view, uint8_t* out, int64_t slots);

// How many elements of a buffer's guard, filled with bytes 0xff, have been changed. element_bytes: 2 or 4.
int64_t count_changed_guards(const Placement& place, const void* buffer, int element_bytes);

// Rows of heads whose O or LSE differ in any bit, but for those that are wild.
int64_t count_different_rows(const DeviceView& view, const DeviceView& other, const Fill& fill);

}  // namespace tandem::gpu_test
