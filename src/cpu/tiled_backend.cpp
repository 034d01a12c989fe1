#include <string>

#include "core/backend.h"
#include "cpu/simd/description.h"
#include "cpu/threads.h"
#include "cpu/tiled_backward.h"
#include "cpu/tiled_forward.h"
#include "cpu/tiled_merge.h"
#include "cpu/tiled_quantize.h"

namespace tandem {
namespace {

Status available(int32_t) {
  return Status::ok();
}

std::string description(int32_t) {
  const int threads = resolve_num_threads(0);
  return simd_description() + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

Status prepare(int32_t) {
  return Status::ok();
}

Status supports(const AttentionProblem& problem) {
  if (problem.dtype != DType::kE5m2) return Status::ok();
  return Status::unsupported("q.dtype is e5m2; of the fp8 types, attention takes e4m3 only");
}

Workspace workspace(const AttentionProblem& problem) {
  return {problem.backward ? tiled_backward_workspace_bytes(problem) : tiled_forward_workspace_bytes(problem)};
}

Status run(const AttentionProblem& problem) {
  if (problem.backward) {
    run_tiled_backward(problem);
  } else {
    run_tiled_forward(problem);
  }
  return Status::ok();
}

Status supports_merge(const MergeProblem&) {
  return Status::ok();
}

Status run_merge(const MergeProblem& problem) {
  run_tiled_merge(problem);
  return Status::ok();
}

Status supports_quantize(const QuantizeProblem&) {
  return Status::ok();
}

Workspace workspace_quantize(const QuantizeProblem& problem) {
  return {tiled_quantize_workspace_bytes(problem)};
}

Status run_quantize(const QuantizeProblem& problem) {
  run_tiled_quantize(problem);
  return Status::ok();
}

}  // namespace

const Backend kTiledBackend = {
    TANDEM_BACKEND_TILED,
    "tiled",
    TANDEM_CPU,
    available,
    description,
    prepare,
    supports,
    workspace,
    run,
    supports_merge,
    run_merge,
    nullptr,
    supports_quantize,
    workspace_quantize,
    run_quantize,
};

}  // namespace tandem
