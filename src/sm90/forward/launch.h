#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::sm90 {

// Loads every instance on the current device, so that later launches can be captured.
Status prepare_forward();

// Runs a problem that forward_supports() on its stream and device: two kernels, no allocation, no
// synchronization. The workspace is that of forward_workspace().
Status launch_forward(const AttentionProblem& problem);

}  // namespace tandem::sm90
