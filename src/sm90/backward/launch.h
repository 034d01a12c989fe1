#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::sm90 {

// Loads every instance on the current device, so that later launches can be captured.
Status prepare_backward();

// Runs a problem that backward_supports() on its stream and device: four kernels, one more if it is packed, and
// one if it is to be deterministic; no allocation, no synchronization. The workspace is that of backward_workspace().
Status launch_backward(const AttentionProblem& problem);

}  // namespace tandem::sm90
