#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "sm90/forward/params.h"
#include "sm90/forward/prepare_params.h"
#include "sm90/tensor_map_spec.h"

namespace tandem::sm90 {

// A forward launch but for what needs a device: the tensor maps are described, not encoded. Host arithmetic only.
struct ForwardPlan {
  int tiles_row = 0;     // of kForwardTiles
  bool general = false;  // which instance: see traits.h
  bool transposes = false;
  DType dtype = DType::kNone;
  int64_t max_tiles = 0;  // work tiles: exact if dense, at most so many if packed
  TensorMapSpec q, k, v, out;
  ForwardParams params;   // maps not filled in
  PrepareParams prepare;  // packed only
};

// Ok, or in words why the kernel cannot run this problem. Reads no data; pointers may be null.
Status forward_supports(const AttentionProblem& problem);

// No row to write, so nothing to launch.
bool forward_is_empty(const AttentionProblem& problem);

// Of a supported problem that is not empty.
ForwardPlan plan_forward(const AttentionProblem& problem);

Workspace forward_workspace(const AttentionProblem& problem);

}  // namespace tandem::sm90
