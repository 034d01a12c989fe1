#pragma once

#include "core/status.h"
#include "sm90/backward/postprocess_plan.h"

namespace tandem::sm90 {

// Loads the kernels on the current device, so that launches can be captured into a graph.
Status prepare_postprocess();

// On the current device: one kernel, a programmatic dependent of the one launched before.
Status launch_postprocess(const PostprocessPlan& plan, void* stream);

}  // namespace tandem::sm90
