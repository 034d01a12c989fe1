#pragma once

#include "engine/machine.h"
#include "sm90/backward/postprocess_plan.h"
#include "sm90/backward/preprocess_plan.h"

namespace tandem::model {

// The kernels before and after the backward kernel, as sm90/backward/{preprocess,postprocess}.cu launch them. All
// blocks of a grid are in the model at once: `most_blocks` of them, which must be enough for the q_blocks that there
// are (a packed problem's grid has more). The first report ends it.
RunResult run_preprocess(Machine& machine, const sm90::PreprocessPlan& plan, int64_t most_blocks);
RunResult run_postprocess(Machine& machine, const sm90::PostprocessPlan& plan, int64_t most_blocks);

}  // namespace tandem::model
