#pragma once

#include "core/status.h"
#include "sm90/backward/preprocess_plan.h"

namespace tandem::sm90 {

// Loads the kernels on the current device, so that launches can be captured into a graph.
Status prepare_preprocess();

// On the current device: two kernels if the problem is packed, else one. The kernel launched next may be a programmatic
// dependent of it, and reads nothing of the workspace before it has waited.
Status launch_preprocess(const PreprocessPlan& plan, void* stream);

}  // namespace tandem::sm90
