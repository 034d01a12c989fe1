#include <cuda_runtime_api.h>

#include <string>

#include "core/backend.h"
#include "sm90/cuda_call.h"
#include "sm90/device.h"
#include "sm90/forward/launch.h"
#include "sm90/forward/plan.h"
#include "sm90/merge/launch.h"
#include "sm90/merge/plan.h"

namespace tandem {
namespace {

Status prepare(int32_t device_ordinal) {
  const sm90::DeviceScope scope(device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  TANDEM_RETURN_IF_ERROR(sm90::prepare_forward());
  return sm90::prepare_merge();
}

Status backward_supports(const AttentionProblem& problem) {
  return Status::unsupported(std::string(problem.backward ? "this is the backward" : "exec.needs_grad is 1") +
                             ", but the sm90 backend of this version has the forward only");
}

Status supports(const AttentionProblem& problem) {
  if (problem.backward || problem.exec.needs_grad) TANDEM_RETURN_IF_ERROR(backward_supports(problem));
  return sm90::forward_supports(problem);
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
    sm90::forward_workspace,
    sm90::launch_forward,
    sm90::merge_supports,
    sm90::launch_merge,
    copy_to_host,
};

}  // namespace tandem
