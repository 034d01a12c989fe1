#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "sm90/forward/params.h"
#include "sm90/tensor_map_spec.h"

namespace tandem::sm90 {

// A forward launch but for what needs a device: the tensor maps are described, not encoded. Host arithmetic only.
struct ForwardPlan {
  ForwardParams params;  // maps and next_tile not filled in
  TensorMapSpec q, k, v, out;
};

// Ok, or in words why the kernel cannot run this problem. Reads no data; pointers may be null.
Status forward_supports(const AttentionProblem& problem);

// Of a supported problem with at least one work tile's worth of rows (forward_tiles() > 0).
ForwardPlan plan_forward(const AttentionProblem& problem);
int64_t forward_tiles(const AttentionProblem& problem);

Workspace forward_workspace(const AttentionProblem& problem);

}  // namespace tandem::sm90
