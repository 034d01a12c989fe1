#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::sm90 {

// Loads the kernels on the current device, so that a launch can be captured into a graph.
Status prepare_merge();

// Runs a problem that merge_supports() on its stream and device: one asynchronous launch.
Status launch_merge(const MergeProblem& problem);

}  // namespace tandem::sm90
