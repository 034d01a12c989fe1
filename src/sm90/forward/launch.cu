#include "sm90/forward/launch.h"

#include <cuda_runtime_api.h>

#include <string>

#include "sm90/forward/kernel.cuh"
#include "sm90/forward/plan.h"
#include "sm90/forward/traits.h"
#include "sm90/tensor_map.h"

namespace tandem::sm90 {
namespace {

using Traits = ForwardInstance;

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  return {TANDEM_DEVICE_ERROR, std::string(what) + ": " + cudaGetErrorString(error)};
}

// Makes a device current, and on the way out the one that was.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device) error_ = cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  cudaError_t error_ = cudaSuccess;
};

Status encode_maps(const ForwardPlan& plan, ForwardParams* params) {
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.q, &params->q));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.k, &params->k));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.v, &params->v));
  return encode_tensor_map(plan.out, &params->out);
}

Status launch(ForwardParams& params, const Execution& exec) {
  int sms = 0;
  TANDEM_RETURN_IF_ERROR(
      to_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, exec.device_ordinal), "SM count"));
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  const auto blocks = static_cast<unsigned int>(min_of(max_of(sms - exec.sm_margin, 1), params.tiles));
  const auto kernel = forward_kernel<Traits>;
  TANDEM_RETURN_IF_ERROR(to_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Traits::kSmemBytes)),
      "shared memory of the forward kernel"));
  TANDEM_RETURN_IF_ERROR(
      to_status(cudaMemsetAsync(params.next_tile, 0, sizeof(*params.next_tile), stream), "clearing the workspace"));
  void* arguments[] = {&params};
  return to_status(
      cudaLaunchKernel(kernel, dim3(blocks), dim3(Traits::kThreads), arguments, Traits::kSmemBytes, stream),
      "the forward kernel");
}

}  // namespace

Status launch_forward(const AttentionProblem& problem) {
  if (forward_tiles(problem) == 0) return Status::ok();
  const DeviceScope scope(problem.exec.device_ordinal);
  TANDEM_RETURN_IF_ERROR(to_status(scope.error(), "choosing the device"));
  const ForwardPlan plan = plan_forward(problem);
  ForwardParams params = plan.params;
  TANDEM_RETURN_IF_ERROR(encode_maps(plan, &params));
  params.next_tile = static_cast<uint32_t*>(problem.exec.workspace);
  return launch(params, problem.exec);
}

}  // namespace tandem::sm90
