#pragma once

#include "core/problem.h"
#include "core/status.h"

namespace tandem::sm90 {

// Loads the kernels on the current device, so that launches can be captured into a graph.
Status prepare_quantize();

// Runs a problem that quantize_supports() on its stream and device: up to three asynchronous launches.
Status launch_quantize(const QuantizeProblem& problem);

}  // namespace tandem::sm90
