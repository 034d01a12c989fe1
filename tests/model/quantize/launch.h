#pragma once

#include <vector>

#include "engine/machine.h"
#include "quantize_case.h"

namespace tandem::model {

struct QuantizeOptions {
  Options machine;
  int most_blocks = 1 << 20;  // of a grid; fewer than there are items take several each
};

struct QuantizeRun {
  RunResult result;
  optest::Quantized quantized;  // `error` is a report's text, if there is one
};

// Runs a case of the operator tests on the GPU's kernels, as sm90/quantize/launch.cu does.
QuantizeRun run_quantize(const optest::QuantizeCase& test, const std::vector<double>& x,
                         const QuantizeOptions& options = {});
optest::Quantized quantize_in_model(const optest::QuantizeCase& test, const std::vector<double>& x,
                                    const QuantizeOptions& options = {});

}  // namespace tandem::model
