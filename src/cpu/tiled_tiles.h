#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/int_math.h"
#include "core/problem.h"
#include "core/sequence.h"

// How the tiled backend cuts a problem into tiles. A tile's shape depends on its own sequence alone, so a sequence's
// bits depend neither on its neighbours in the batch nor on the number of threads [12].
namespace tandem {

constexpr int64_t kBlockM = 256;  // lanes (query rows) of a tile, at most
constexpr int64_t kBlockN = 96;   // keys of a tile, at most: whole register blocks of 12 and of 6 rows

// Key positions, in lanes as wide as the compute type so that comparisons give masks for it. Lengths are below 2^31.
template <typename T>
using Position = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

// Query rows of one sequence that share a key head: `rows` rows of each of `heads` adjacent query heads. They are the
// SIMD lanes of the tile: lane l is row l % rows of head l / rows.
struct QueryTile {
  int64_t sequence = 0;
  int64_t head_k = 0;
  int64_t head = 0;
  int64_t heads = 1;
  int64_t row = 0;
  int64_t rows = 0;

  int64_t lanes() const { return heads * rows; }
  int64_t lane_head(int64_t lane) const { return head + lane / rows; }
  int64_t lane_row(int64_t lane) const { return row + lane % rows; }
};

// The query tiles of one key head of a sequence: m_blocks of each query head, or, where the sequence has few query rows
// (decoding), all rows of several heads at once, so that each key is read once for all of them.
class SequenceTiles {
 public:
  SequenceTiles(const AttentionProblem& problem, int64_t seqlen_q)
      : seqlen_q_(seqlen_q),
        heads_(problem.qheads_per_khead()),
        heads_per_tile_(std::clamp<int64_t>(kBlockM / std::max<int64_t>(seqlen_q, 1), 1, std::max<int64_t>(heads_, 1))),
        m_blocks_(ceil_div(seqlen_q, kBlockM)) {}

  int64_t count() const { return ceil_div(heads_, heads_per_tile_) * m_blocks_; }

  // From the last m_block to the first: under a causal mask the longest tiles come first.
  QueryTile at(int64_t index, int64_t sequence, int64_t head_k) const {
    const int64_t first_head = index / m_blocks_ * heads_per_tile_;
    const int64_t row = (m_blocks_ - 1 - index % m_blocks_) * kBlockM;
    return {sequence,
            head_k,
            head_k * heads_ + first_head,
            std::min(heads_per_tile_, heads_ - first_head),
            row,
            std::min(kBlockM, seqlen_q_ - row)};
  }

 private:
  int64_t seqlen_q_;
  int64_t heads_;  // query heads of a key head
  int64_t heads_per_tile_;
  int64_t m_blocks_;
};

// Lanes of a panel (simd/tile-inl.h) on the target with the widest vectors.
template <typename T>
constexpr int64_t kMaxPanelLanes = 2 * 64 / static_cast<int64_t>(sizeof(T));

// No tile of the problem has more lanes than this.
inline int64_t max_lanes(const AttentionProblem& problem) {
  return std::min(kBlockM, problem.total_q * problem.qheads_per_khead());
}

inline int64_t max_tile_keys(const AttentionProblem& problem) {
  return std::min(kBlockN, problem.total_k);
}

// Rows of a buffer that belong to no sequence and lie before those of sequence `index`; index == batch: after the last.
// Dense problems have one buffer for each sequence: there, the rows after those of `index`, and none for batch.
struct Gap {
  int64_t sequence = 0;  // whose buffer it is
  int64_t begin = 0;
  int64_t end = 0;
};

inline Gap query_gap(const AttentionProblem& problem, const SequenceSpan* spans, int64_t index) {
  if (!problem.packed) return index == problem.batch ? Gap{} : Gap{index, spans[index].q_len, problem.total_q};
  const int64_t begin = index == 0 ? 0 : spans[index - 1].q_begin + spans[index - 1].q_len;
  return {0, begin, index == problem.batch ? problem.total_q : spans[index].q_begin};
}

inline Gap key_gap(const AttentionProblem& problem, const SequenceSpan* spans, int64_t index) {
  if (!problem.packed) return index == problem.batch ? Gap{} : Gap{index, spans[index].k_len, problem.total_k};
  const int64_t begin = index == 0 ? 0 : spans[index - 1].k_begin + spans[index - 1].k_len;
  return {0, begin, index == problem.batch ? problem.total_k : spans[index].k_begin};
}

}  // namespace tandem
