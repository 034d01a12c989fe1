// Lengths round the edges of tiles, for every mask, in every instance of the forward kernel: packed sequences of all
// pairs of lengths, dense ones with used lengths, dense ones alone; and scores that are hard on an online softmax.

#include <gtest/gtest.h>

#include "device_problem.h"
#include "edge_lengths.h"
#include "fp8_scales.h"
#include "masks.h"
#include "op_targets.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_problem;
using optest::packed_problem;
using optest::Problem;
using optest::Target;

class TileEdges : public testing::TestWithParam<Target> {
 protected:
  // All for bf16 in each instance; a third of them, each time another one, for what differs from those by little.
  std::vector<Variant> variants() const {
    std::vector<Variant> all = mask_variants();
    all.insert(all.end(), score_variants().begin(), score_variants().end());
    const Target& target = GetParam();
    for (const Target& instance : instance_targets()) {
      if (instance.name == target.name) return all;
    }
    std::vector<Variant> some;
    for (size_t n = static_cast<size_t>(target.headdim / 8 + target.headdim_v / 8 + target.dtype) % 3; n < all.size();
         n += 3) {
      some.push_back(all[n]);
    }
    return some;
  }
  Problem packed(const Lengths& lengths, int64_t nheads_q, int64_t nheads_k) const {
    return fitted(packed_problem(lengths.q, lengths.k, nheads_q, nheads_k, 1), GetParam());
  }
  Problem dense(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k) const {
    return fitted(dense_problem(batch, seqlen_q, seqlen_k, nheads_q, nheads_k, 1), GetParam());
  }
  void expect_right(Problem problem, const Variant& variant, const Fill& fill, bool head_major = false) const {
    variant.apply(problem);
    vary_fp8(problem, fill.seed);
    EXPECT_EQ(check_on_device(problem, fill, head_major), "") << variant.name;
  }
};

// 464 sequences: more than two work tiles for each SM.
TEST_P(TileEdges, C76_PackedSequences) {
  const Problem problem = packed(edge_lengths(), 2, 1);
  Fill fill;
  for (const Variant& variant : variants()) {
    ++fill.seed;
    fill.infinite_poison = fill.seed % 2 == 0;
    expect_right(problem, variant, fill);
  }
}

TEST_P(TileEdges, C76_PackedSequencesWithGaps) {
  const Lengths lengths = edge_lengths();
  Problem problem = packed(lengths, 3, 3);
  problem.total_q += 70;
  problem.total_k += 5;
  use_some(lengths, problem.seqused_q, problem.seqused_k);
  Fill fill{100};
  for (const Variant& variant : variants()) {
    ++fill.seed;
    expect_right(problem, variant, fill);
  }
}

TEST_P(TileEdges, C76_DenseWithUsedLengths) {
  const Lengths lengths = edge_lengths();
  Problem problem = dense(static_cast<int64_t>(lengths.q.size()), 385, 1025, 2, 1);
  problem.seqused_q = lengths.q;
  problem.seqused_k = lengths.k;
  Fill fill{200};
  for (const Variant& variant : variants()) {
    ++fill.seed;
    expect_right(problem, variant, fill, fill.seed % 2 == 0);
  }
}

TEST_P(TileEdges, C76_Dense) {
  Fill fill{300};
  for (const Variant& variant : variants()) {
    for (int64_t seqlen_q : {1, 64, 65, 129, 192, 257}) {
      for (int64_t seqlen_k : {1, 64, 97, 128, 193, 769}) {
        ++fill.seed;
        if (fill.seed % (is_quick() ? 23 : 3) != 0) continue;
        expect_right(dense(2, seqlen_q, seqlen_k, 2, 2), variant, fill, fill.seed % 2 == 0);
      }
    }
  }
}

// 6 x 8 x 4 work tiles a variant, with many heads to a key head.
TEST_P(TileEdges, ManyTilesOfGroupedHeads) {
  Fill fill{400};
  for (const Variant& variant : variants()) {
    ++fill.seed;
    if (is_quick() && fill.seed % 4 != 0) continue;
    expect_right(dense(6, 500, 900, 8, 2), variant, fill, fill.seed % 2 == 0);
    expect_right(dense(3, 300, 700, 12, 1), variant, fill);
  }
}

// Key blocks are visited from the last to the first: the scores of kSpikes and kRampDown outgrow whatever reference a
// softmax has taken from the blocks before.
TEST_P(TileEdges, HardScores) {
  for (Pattern pattern : kPatterns) {
    uint64_t seed = 500;
    for (const Variant& variant : variants()) {
      ++seed;
      if (is_quick() && seed % 4 != 0) continue;
      expect_right(dense(3, 330, 1100, 4, 2), variant, {seed, pattern});
      expect_right(packed({{5, 200, 130}, {900, 333, 1300}}, 2, 2), variant, {seed + 100, pattern});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, TileEdges, testing::ValuesIn(optest::targets()), target_name);

}  // namespace
}  // namespace tandem::gpu_test
