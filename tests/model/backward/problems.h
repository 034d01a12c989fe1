#pragma once

#include <string>
#include <vector>

#include "make_problem.h"
#include "problem.h"
#include "sm90/backward/tiles.h"

// Attention problems for the backward, in terms of an instance's tiles.
namespace tandem::model {

// One instance of the backward kernel: a row of sm90::kBackwardTiles, which kind, and an element type.
struct BackwardId {
  int row = 0;
  bool general = false;
  int32_t dtype = TANDEM_BF16;

  const sm90::BackwardTiles& tiles() const { return sm90::kBackwardTiles[row]; }
  std::string name() const;  // "bf16_128", "bf16_128_general"
};
std::vector<BackwardId> backward_ids(int32_t dtype);

// Of the instance's own head dims. Those of a general instance have a softcap.
optest::Problem dense_problem(const BackwardId& id, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1);
optest::Problem packed_problem(const BackwardId& id, const std::vector<int32_t>& lengths_q,
                               const std::vector<int32_t>& lengths_k, int64_t nheads = 1);

}  // namespace tandem::model
