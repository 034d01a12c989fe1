#include <cuda_runtime_api.h>

#include <string>

#include "core/backend.h"
#include "sm90/backward/launch.h"
#include "sm90/backward/plan.h"
#include "sm90/cuda_call.h"
#include "sm90/device.h"
#include "sm90/forward/launch.h"
#include "sm90/forward/plan.h"
#include "sm90/merge/launch.h"
#include "sm90/merge/plan.h"
#include "sm90/quantize/launch.h"
#include "sm90/quantize/plan.h"

namespace tandem {
namespace {

Status prepare(int32_t device_ordinal) {
  const sm90::DeviceScope scope(device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  TANDEM_RETURN_IF_ERROR(sm90::prepare_forward());
  TANDEM_RETURN_IF_ERROR(sm90::prepare_backward());
  TANDEM_RETURN_IF_ERROR(sm90::prepare_merge());
  return sm90::prepare_quantize();
}

// With needs_grad the forward answers for the backward as well.
Status backward_of_forward_supports(const AttentionProblem& problem) {
  AttentionProblem backward = problem;
  backward.backward = true;
  backward.dout = backward.out;
  backward.dq = backward.q;
  backward.dk = backward.k;
  backward.dv = backward.v;
  const Status status = sm90::backward_supports(backward);
  if (status.is_ok()) return status;
  return {status.code(), "exec.needs_grad is 1, and its backward is refused: " + status.message()};
}

Status supports(const AttentionProblem& problem) {
  if (problem.backward) return sm90::backward_supports(problem);
  if (problem.exec.needs_grad) TANDEM_RETURN_IF_ERROR(backward_of_forward_supports(problem));
  return sm90::forward_supports(problem);
}

Workspace workspace(const AttentionProblem& problem) {
  return problem.backward ? sm90::backward_workspace(problem) : sm90::forward_workspace(problem);
}

Status run(const AttentionProblem& problem) {
  return problem.backward ? sm90::launch_backward(problem) : sm90::launch_forward(problem);
}

Status copy_to_host(const Execution& exec, void* host, const void* device, uint64_t bytes) {
  const sm90::DeviceScope scope(exec.device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  // The call fails on the default stream while another one is captured in a mode that forbids its use.
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) {
    return Status::unsupported(
        "exec.checked (or TANDEM_CHECK=1) reads offsets, lengths and intervals on the host, which a stream that is "
        "captured into a graph cannot wait for; check before the capture");
  }
  TANDEM_RETURN_IF_ERROR(sm90::to_status(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream),
                                         "copying what is to be checked"));
  return sm90::to_status(cudaStreamSynchronize(stream), "waiting for what is to be checked");
}

}  // namespace

const Backend kSm90Backend = {
    TANDEM_BACKEND_SM90,
    "sm90",
    TANDEM_CUDA,
    sm90::device_available,
    sm90::device_description,
    prepare,
    supports,
    workspace,
    run,
    sm90::merge_supports,
    sm90::launch_merge,
    copy_to_host,
    sm90::quantize_supports,
    sm90::quantize_workspace,
    sm90::launch_quantize,
};

}  // namespace tandem
