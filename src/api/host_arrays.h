#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "core/backend.h"
#include "core/problem.h"
#include "core/status.h"

namespace tandem {

// Host copies of the arrays that checked mode reads: offsets, lengths and bounds.
class HostArrays {
 public:
  // Points these arrays of the problem at copies, which live as long as this object.
  Status fetch(const Backend& backend, AttentionProblem* problem);
  Status fetch(const Backend& backend, QuantizeProblem* problem);

 private:
  // Of an int32 array that spans `elements`, gaps between its elements included.
  Status copy(const Backend& backend, const Execution& exec, int64_t elements, void** data);
  Status copy(const Backend& backend, const Execution& exec, int64_t count, Vector* vector);
  Status copy(const Backend& backend, const AttentionProblem& problem, RowTensor* bound);

  std::list<std::vector<int32_t>> copies_;
};

}  // namespace tandem
