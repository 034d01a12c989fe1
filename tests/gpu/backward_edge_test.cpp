// Gradients at lengths round the edges of tiles, for every mask, in every instance of the backward kernel: packed
// sequences of all pairs of lengths, dense ones with used lengths, dense ones alone; groups of heads; hard scores.

#include "backward_test.h"
#include "edge_lengths.h"
#include "masks.h"

namespace tandem::gpu_test {
namespace {

using optest::Problem;
using optest::Target;

class BackwardEdges : public BackwardTest {
 protected:
  // All for bf16 in each instance; a third of them, each time another one, for what differs from those by little.
  std::vector<Variant> variants() const {
    std::vector<Variant> all;
    for (const std::vector<Variant>* some : {&mask_variants(), &score_variants(), &gradient_variants()}) {
      for (const Variant& variant : *some) {
        if (is_possible(variant)) all.push_back(variant);
      }
    }
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

  bool is_possible(const Variant& variant) const {
    Problem problem = dense(1, 1, 1, 1, 1);
    variant.apply(problem);
    return problem.with_lse && (!problem.deterministic || GetParam().deterministic);
  }

  static void expect_right(Problem problem, const Variant& variant, const Fill& fill, bool head_major = false) {
    variant.apply(problem);
    EXPECT_EQ(check_backward(problem, fill, head_major), "") << variant.name;
  }
};

// 464 sequences.
TEST_P(BackwardEdges, C76_PackedSequences) {
  const Lengths lengths = edge_lengths();
  const Problem problem = packed(lengths.q, lengths.k, 2, 1);
  Fill fill;
  for (const Variant& variant : variants()) {
    ++fill.seed;
    fill.infinite_poison = fill.seed % 2 == 0;
    expect_right(problem, variant, fill);
  }
}

TEST_P(BackwardEdges, C76_PackedSequencesWithGaps) {
  const Lengths lengths = edge_lengths();
  Problem problem = packed(lengths.q, lengths.k, 3, 3);
  problem.total_q += 70;
  problem.total_k += 5;
  use_some(lengths, problem.seqused_q, problem.seqused_k);
  Fill fill{100};
  for (const Variant& variant : variants()) {
    ++fill.seed;
    expect_right(problem, variant, fill);
  }
}

TEST_P(BackwardEdges, C76_DenseWithUsedLengths) {
  const Lengths lengths = edge_lengths();
  Problem problem = dense(static_cast<int64_t>(lengths.q.size()), 385, 1025, 2, 1);
  problem.seqused_q = lengths.q;
  problem.seqused_k = lengths.k;
  Fill fill{200};
  for (const Variant& variant : variants()) {
    ++fill.seed;
    if (fill.seed % 3 != 0) continue;
    expect_right(problem, variant, fill, fill.seed % 2 == 0);
  }
}

TEST_P(BackwardEdges, C76_Dense) {
  Fill fill{300};
  for (const Variant& variant : variants()) {
    for (int64_t seqlen_q : {1, 64, 65, 129, 192, 257, 769}) {
      for (int64_t seqlen_k : {1, 64, 97, 128, 129, 193, 769}) {
        ++fill.seed;
        if (fill.seed % (is_quick() ? 37 : 7) != 0) continue;
        expect_right(dense(2, seqlen_q, seqlen_k, 2, 2), variant, fill, fill.seed % 2 == 0);
      }
    }
  }
}

TEST_P(BackwardEdges, ManyTilesOfGroupedHeads) {
  Fill fill{400};
  for (const Variant& variant : variants()) {
    ++fill.seed;
    if (is_quick() && fill.seed % 4 != 0) continue;
    expect_right(dense(6, 500, 900, 8, 2), variant, fill, fill.seed % 2 == 0);
    expect_right(dense(3, 900, 300, 12, 1), variant, fill);
  }
}

// Where P is near 1 in a few places and 0 elsewhere.
TEST_P(BackwardEdges, HardScores) {
  for (Pattern pattern : kPatterns) {
    uint64_t seed = 500 + static_cast<uint64_t>(pattern);
    for (const Variant& variant : variants()) {
      ++seed;
      if (seed % (is_quick() ? 11 : 3) != 0) continue;
      expect_right(dense(3, 330, 1100, 4, 2), variant, {seed, pattern});
      expect_right(packed({5, 200, 130}, {900, 333, 1300}, 2, 2), variant, {seed + 100, pattern});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, BackwardEdges, testing::ValuesIn(optest::targets()), target_name);

}  // namespace
}  // namespace tandem::gpu_test
