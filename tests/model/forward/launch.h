#pragma once

#include <functional>
#include <string>

#include "engine/machine.h"
#include "problem.h"
#include "sm90/forward/params.h"

namespace tandem::model {

struct ForwardRun {
  RunResult result;
  optest::Results outputs;  // of a run without a report
  std::string unwritten;    // the first byte of an output that nobody has written; empty: all are
  Names names;              // for a timeline
};

// The forward of src/sm90/forward in the model, by its own plan: what prepares the workspace, and then, dependent on
// it, the kernel, with `blocks` persistent blocks at most. Throws where forward_supports() refuses. `change`: what is
// to be wrong with the plan.
ForwardRun run_forward(const optest::Problem& problem, const optest::Inputs& inputs, int blocks, const Options& options,
                       const std::function<void(sm90::ForwardParams&)>& change = {});

// Empty, or what is wrong with a run: its report, something not written, or an error beyond the contract's tolerance
// [16] of attention in double.
std::string fault_of(const optest::Problem& problem, const optest::Inputs& inputs, const ForwardRun& run);

}  // namespace tandem::model
