#include "core/backend.h"
#include "cpu/reference.h"

namespace tandem {
namespace {

Status available(int32_t) {
  return Status::ok();
}
std::string description(int32_t) {
  return "double precision, whole score rows, 1 thread";
}
Status prepare(int32_t) {
  return Status::ok();
}

Status supports(const AttentionProblem& problem) {
  if (problem.dtype != DType::kE5m2) return Status::ok();
  return Status::unsupported("q.dtype is e5m2; of the fp8 types, attention takes e4m3 only");
}

Workspace workspace(const AttentionProblem&) {
  return {};
}

Status run(const AttentionProblem& problem) {
  return problem.backward ? reference::run_backward(problem) : reference::run_forward(problem);
}

Status supports_merge(const MergeProblem&) {
  return Status::ok();
}

Status supports_quantize(const QuantizeProblem&) {
  return Status::ok();
}
Workspace workspace_quantize(const QuantizeProblem&) {
  return {};
}

}  // namespace

const Backend kReferenceBackend = {
    TANDEM_BACKEND_REFERENCE,
    "reference",
    TANDEM_CPU,
    available,
    description,
    prepare,
    supports,
    workspace,
    run,
    supports_merge,
    reference::run_merge,
    nullptr,
    supports_quantize,
    workspace_quantize,
    reference::run_quantize,
};

}  // namespace tandem
