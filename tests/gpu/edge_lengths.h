#pragma once

#include <cstdint>
#include <vector>

#include "fill.h"
#include "op_targets.h"

// Lengths round the edges of tiles, up to more than twice the stages of every instance's blocks.
namespace tandem::gpu_test {

constexpr int32_t kEdgeSeqlensQ[] = {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 384, 385};
constexpr int32_t kEdgeSeqlensK[] = {1,   63,  64,  65,  79,  80,  81,  95,  96,  97,  111, 112, 113,  127, 128,
                                     129, 175, 176, 177, 191, 192, 193, 255, 256, 257, 384, 513, 1025, 0};

struct Lengths {
  std::vector<int32_t> q, k;
};

// All pairs; a third of them if is_quick().
inline Lengths edge_lengths() {
  Lengths lengths;
  for (int32_t q : kEdgeSeqlensQ) {
    for (int32_t k : kEdgeSeqlensK) {
      if (is_quick() && (q + k) % 3 != 0) continue;
      lengths.q.push_back(q);
      lengths.k.push_back(k);
    }
  }
  return lengths;
}

// Some of each sequence's rows and keys, by chance: all, some, none.
inline void use_some(const Lengths& lengths, std::vector<int32_t>& used_q, std::vector<int32_t>& used_k) {
  for (size_t b = 0; b < lengths.q.size(); ++b) {
    const uint64_t random = hash_of(7, b);
    used_q.push_back(static_cast<int32_t>(random % 4 == 0 ? lengths.q[b] : lengths.q[b] * (random % 97) / 97));
    used_k.push_back(static_cast<int32_t>(random % 4 == 1 ? lengths.k[b] : lengths.k[b] * (random % 89) / 89));
  }
}

}  // namespace tandem::gpu_test
