#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "sm90/backward/key_blocks_params.h"
#include "sm90/backward/params.h"
#include "sm90/backward/postprocess_plan.h"
#include "sm90/backward/preprocess_plan.h"
#include "sm90/tensor_map_spec.h"

namespace tandem::sm90 {

// A backward's launches but for what needs a device: the tensor maps are described, not encoded. Host arithmetic only.
// Without work tiles (max_tiles is 0) only preprocess and postprocess are filled in.
struct BackwardPlan {
  int tiles_row = 0;     // of kBackwardTiles
  bool general = false;  // which instance: see traits.h
  DType dtype = DType::kNone;
  int64_t max_tiles = 0;           // work tiles: exact if dense, at most so many if packed
  int64_t max_records = 0;         // records of n_blocks: the same
  int64_t first_turns_blocks = 0;  // of the kernel of first_turns.cuh, which shares key_blocks; 0: not deterministic
  TensorMapSpec q, k, v, dout, dk, dv;
  PreprocessPlan preprocess;
  KeyBlockParams key_blocks;
  BackwardParams params;  // maps not filled in
  PostprocessPlan postprocess;
};

// Ok, or in words why the kernels cannot run this problem. Reads no data; pointers may be null.
Status backward_supports(const AttentionProblem& problem);

// No gradient to write, so nothing to launch.
bool backward_is_empty(const AttentionProblem& problem);

// Of a supported problem that is not empty.
BackwardPlan plan_backward(const AttentionProblem& problem);

Workspace backward_workspace(const AttentionProblem& problem);

}  // namespace tandem::sm90
