#pragma once

#include <string>
#include <vector>

#include "engine/machine.h"
#include "problem.h"

namespace tandem::model {

// A problem, what the backward is given of it, and attention in double of the same.
struct BackwardCase {
  optest::Problem problem;
  optest::Inputs inputs;
  optest::Results oracle;
  std::vector<double> out, lse;  // as a forward leaves them
};

// Random inputs. NaN lies wherever nothing may depend on it: in rows, of Q, O, dO, LSE and dLSE, of no sequence; in
// keys that no row sees; and, without a sink (whose gradient they take part in), in Q, O and dO of rows that see no
// key.
BackwardCase backward_case(const optest::Problem& problem, uint64_t seed = 1);

struct BackwardRun {
  RunResult result;
  optest::Results gradients;  // of a run without a report
  std::string unwritten;      // the first byte of a gradient that nobody has written; empty: all are
  Names names;                // for a timeline
};

// The backward of src/sm90/backward in the model, by its own plan: the kernels that prepare it, the backward kernel
// with `blocks` persistent blocks at most, and what comes after it. Throws where backward_supports() refuses.
BackwardRun run_backward(const BackwardCase& given, int blocks, const Options& options);

// Empty, or what is wrong with a run: its report, something not written, or an error beyond the contract's tolerance
// [16].
std::string fault_of(const BackwardCase& given, const BackwardRun& run);

}  // namespace tandem::model
