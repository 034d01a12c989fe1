#pragma once

#include <vector>

#include "verify_case.h"

namespace tandem::cli {

// One value per result, indexed by Result.
enum Result { kResultOut, kResultLse, kResultDq, kResultDk, kResultDv, kResultDsink, kResultCount };
extern const char* const kResultNames[kResultCount];

using Values = std::vector<double>;

struct AttentionValues {
  Values values[kResultCount];  // contiguous, in the layouts of tandem.h; empty if not computed
};

struct PlainAttention {
  AttentionValues result;
  // Largest error that rounding inside any implementation may add, see allowed_error() in verify_compare.h.
  double rounding[kResultCount] = {};
};

// Attention as anyone would write it, with S, P, O and their gradients each rounded to the input type: the yardstick
// for errors [16]. Straight from the formulas of tandem.h, masks included; shares nothing with the library.
PlainAttention plain_attention(const VerifyCase& c, const CaseInputs& inputs);

// The tensor's values as numbers; a factor from fp8 scales is applied.
Values decoded(const TensorBuffer& tensor, const TensorBuffer& factor);

}  // namespace tandem::cli
