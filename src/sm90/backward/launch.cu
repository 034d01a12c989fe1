#include "sm90/backward/launch.h"

#include <cuda_runtime_api.h>

#include "sm90/backward/instance.h"
#include "sm90/backward/key_blocks.cuh"
#include "sm90/backward/plan.h"
#include "sm90/backward/postprocess.h"
#include "sm90/backward/preprocess.h"
#include "sm90/backward/tiles.h"
#include "sm90/cuda_call.h"
#include "sm90/tensor_map.h"

namespace tandem::sm90 {
namespace {

// nullptr kernel: the row has no such instance.
template <typename Element>
BackwardInstance find_instance(int row, bool general) {
  static_assert(kBackwardTilesCount == 2);
  if (row == 0) return general ? BackwardInstance{} : backward_instance<Element, 0, false>();
  return general ? backward_instance<Element, 1, true>() : backward_instance<Element, 1, false>();
}

BackwardInstance find_instance(DType dtype, int row, bool general) {
  return dtype == DType::kBf16 ? find_instance<Bf16>(row, general) : find_instance<Fp16>(row, general);
}

Status allow_shared_memory(const BackwardInstance& instance) {
  return to_status(
      cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance.smem_bytes),
      "shared memory of the backward kernel");
}

Status encode_maps(const BackwardPlan& plan, BackwardParams* params) {
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.q, &params->q));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.k, &params->k));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.v, &params->v));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.dout, &params->dout));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.dk, &params->dk));
  return encode_tensor_map(plan.dv, &params->dv);
}

// May begin while the kernel before still runs, and waits for it.
Status launch_dependent(const void* kernel, int64_t blocks, int threads, int smem_bytes, void* parameter,
                        cudaStream_t stream, const char* what) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned int>(blocks));
  config.blockDim = dim3(static_cast<unsigned int>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(smem_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {parameter};
  return to_status(cudaLaunchKernelExC(&config, kernel, arguments), what);
}

Status launch_key_blocks(const BackwardPlan& plan, cudaStream_t stream) {
  KeyBlockParams params = plan.key_blocks;
  constexpr int kRecordsPerBlock = kKeyBlockThreads / 32;
  return launch_dependent(reinterpret_cast<const void*>(&key_blocks_kernel),
                          ceil_div(plan.max_records, kRecordsPerBlock), kKeyBlockThreads, 0, &params, stream,
                          "the kernel that plans the backward");
}

// dK and dV, and the sums of dQ.
Status launch_gradients(const BackwardPlan& plan, const Execution& exec) {
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  TANDEM_RETURN_IF_ERROR(launch_key_blocks(plan, stream));
  int sms = 0;
  TANDEM_RETURN_IF_ERROR(
      to_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, exec.device_ordinal), "SM count"));
  const BackwardInstance instance = find_instance(plan.dtype, plan.tiles_row, plan.general);
  TANDEM_RETURN_IF_ERROR(allow_shared_memory(instance));
  BackwardParams params = plan.params;
  TANDEM_RETURN_IF_ERROR(encode_maps(plan, &params));
  const int64_t blocks = min_of(max_of(sms - exec.sm_margin, 1), plan.max_tiles);
  return launch_dependent(instance.kernel, blocks, instance.threads, instance.smem_bytes, &params, stream,
                          "the backward kernel");
}

}  // namespace

Status prepare_backward() {
  for (int row = 0; row < kBackwardTilesCount; ++row) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      for (const bool general : {false, true}) {
        const BackwardInstance instance = find_instance(dtype, row, general);
        if (instance.kernel != nullptr) TANDEM_RETURN_IF_ERROR(allow_shared_memory(instance));
      }
    }
  }
  cudaFuncAttributes attributes;
  TANDEM_RETURN_IF_ERROR(
      to_status(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&key_blocks_kernel)),
                "loading the kernel that plans the backward"));
  TANDEM_RETURN_IF_ERROR(prepare_preprocess());
  return prepare_postprocess();
}

Status launch_backward(const AttentionProblem& problem) {
  if (backward_is_empty(problem)) return Status::ok();
  const DeviceScope scope(problem.exec.device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  const BackwardPlan plan = plan_backward(problem);
  TANDEM_RETURN_IF_ERROR(launch_preprocess(plan.preprocess, problem.exec.stream));
  if (plan.max_tiles > 0) TANDEM_RETURN_IF_ERROR(launch_gradients(plan, problem.exec));
  return launch_postprocess(plan.postprocess, problem.exec.stream);
}

}  // namespace tandem::sm90
