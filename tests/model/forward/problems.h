#pragma once

#include <functional>
#include <string>
#include <vector>

#include "make_problem.h"
#include "problem.h"
#include "sm90/forward/tiles.h"

// Attention problems for the forward, in terms of an instance's tiles.
namespace tandem::model {

// One instance of the forward kernel: an element type, and a row of its tuning table.
struct InstanceId {
  int row = 0;
  int32_t dtype = TANDEM_BF16;
  bool v_in_slots = false;  // e4m3: V comes as V^T, and is not transposed by the kernel

  bool is_fp8() const { return dtype == TANDEM_E4M3; }
  sm90::ForwardTiles tiles() const { return sm90::forward_tiles(is_fp8(), row, false, is_fp8() && !v_in_slots); }
  int block_m() const { return tiles().consumers * 64; }
  int block_n() const { return tiles().block_n; }
  std::string name() const;  // "bf16_192_128", "e4m3_64_slots"
};
std::vector<InstanceId> forward_instances(int32_t dtype);

// Of the instance's own head dims. In e4m3, O is bf16.
optest::Problem dense_problem(const InstanceId& instance, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads = 1);

// packed_with_gaps() of the instance's own head dims.
optest::Problem packed_problem(const InstanceId& instance, const std::vector<int32_t>& lengths_q,
                               const std::vector<int32_t>& lengths_k, int64_t nheads = 1);

// Makes the scores of the rows that `grows` names grow from each block of keys to the next, in the order in which
// kernels visit them, the last block first: by so many powers of two. Those of all other rows stay small. Dense
// problems of one batch entry.
void grow_scores(const optest::Problem& problem, const InstanceId& instance, const std::function<bool(int64_t)>& grows,
                 double exponent, optest::Inputs& inputs);

}  // namespace tandem::model
