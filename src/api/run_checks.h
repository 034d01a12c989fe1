#pragma once

#include "api/arguments.h"
#include "core/backend.h"
#include "core/problem.h"
#include "core/status.h"

// What only a run can check, beyond the parsed problem: addresses, and in checked mode the values of offsets and
// lengths.
namespace tandem {

// Tensors that have elements have an address, aligned to the element; and no output overlaps another tensor where the
// first elements of both show it.
Status check_memory(const NamedTensor* tensors, int count);

Status check_workspace(const Execution& exec, const Workspace& needed);

// Checked mode [13], of arrays in host memory: offsets begin at 0, never decrease and end within the buffer; used
// lengths lie within their sequence; a packed sequence has scales for all of its blocks. Interval bounds are clamped by
// definition [4], so any value has a meaning; but a lower bound beyond the sequence or a negative upper one is
// reported, since it comes from positions that count from somewhere else (from the start of a packed buffer, say).
Status check_values(const AttentionProblem& problem);

// The same wherever the arrays lie: copies them to the host first, if the backend's device has memory of its own.
Status check_values(const Backend& backend, const AttentionProblem& problem);
// Of a quantisation, too: that each row has its position in the rotary tables.
Status check_values(const QuantizeProblem& problem);
Status check_values(const Backend& backend, const QuantizeProblem& problem);
inline Status check_values(const Backend&, const MergeProblem&) {
  return Status::ok();
}

}  // namespace tandem
