#pragma once

#include <optional>
#include <string>

#include "verify_plain.h"

namespace tandem::cli {

struct CaseOutcome {
  bool refused = false;  // the backend cannot run the case; `detail` is its sentence
  bool failed = false;   // `detail` says what differs
  double worst = 0;      // largest error / allowed error over the results
  std::string detail;
};

// Runs the case on `backend` and `device` and compares it with the reference backend's fp64 results.
CaseOutcome verify_case(const VerifyCase& c, int32_t backend, tandem_device device = {TANDEM_CPU, 0});

// Contract 16: at most 2x the error of plain attention, plus two units in the last place of the stored type at the
// largest magnitude. Added to it is what no implementation can avoid and plain attention, being one sample, may miss by
// luck in tensors of few elements: the rounding of sums (fp32, or fp64 for fp64) relative to their absolute terms, and,
// in the backward, of the O that the forward stores.
double allowed_error(double plain_error, int32_t stored_dtype, double largest, double rounding);

}  // namespace tandem::cli
