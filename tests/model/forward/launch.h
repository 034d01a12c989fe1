#pragma once

#include "engine/machine.h"
#include "forward/problem.h"

namespace tandem::model {

struct ForwardRun {
  RunResult result;
  ForwardOutputs outputs;  // of a run without a report
  std::string unwritten;   // the first byte of an output that nobody has written; empty: all are
  Names names;             // for a timeline
};

// The forward kernel of src/sm90/forward in the model, with `blocks` persistent blocks. headdim: 64 or 128.
ForwardRun run_forward(const ForwardProblem& problem, const ForwardInputs& inputs, int blocks, const Options& options);

}  // namespace tandem::model
