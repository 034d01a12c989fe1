#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mask.h"

namespace tandem::model {

// A dense bf16 forward problem; tensors are (batch, seqlen, heads, headdim), contiguous.
struct ForwardProblem {
  int64_t batch = 1;
  int64_t nheads_q = 1;
  int64_t nheads_k = 1;
  int64_t seqlen_q = 1;
  int64_t seqlen_k = 1;
  int64_t headdim = 64;
  MaskSpec mask;
  uint64_t seed = 1;  // of the values

  std::string text() const;
};

struct ForwardInputs {
  std::vector<uint16_t> q, k, v;  // bf16
};
// Normal values.
ForwardInputs make_inputs(const ForwardProblem& problem);

struct ForwardOutputs {
  std::vector<double> out;  // (batch, seqlen_q, nheads_q, headdim)
  std::vector<double> lse;  // (batch, nheads_q, seqlen_q)
};

// What a kernel may miss `out` by, element by element: P and O are rounded to bf16, half a unit each, twice that for
// the rest. From the definition: sum over keys of P |V|, times 2^-8, and |O| times 2^-8.
struct Reference {
  ForwardOutputs want;
  std::vector<double> allowed;
};

// softmax(Q K^T / sqrt(headdim) + mask) V in double, one row at a time.
Reference reference(const ForwardProblem& problem, const ForwardInputs& inputs);

// Empty, or the first element that is further off than allowed.
std::string difference(const Reference& reference, const ForwardOutputs& got);

}  // namespace tandem::model
