#include "sm90/forward/launch.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "sm90/cuda_call.h"
#include "sm90/forward/instance.h"
#include "sm90/forward/plan.h"
#include "sm90/forward/prepare.cuh"
#include "sm90/forward/tiles.h"
#include "sm90/tensor_map.h"

namespace tandem::sm90 {
namespace {

using InstanceOf = ForwardInstance (*)();

template <typename Element, bool kGeneral, bool kTransposes, int... kRows>
ForwardInstance find_instance(int row, std::integer_sequence<int, kRows...>) {
  constexpr InstanceOf instances[] = {&forward_instance<Element, kRows, kGeneral, kTransposes>...};
  return instances[row]();
}

// The first kCount rows.
template <typename Element, int kCount, bool kTransposes = false>
ForwardInstance find_instance(int row, bool general) {
  constexpr std::make_integer_sequence<int, kCount> rows;
  return general ? find_instance<Element, true, kTransposes>(row, rows)
                 : find_instance<Element, false, kTransposes>(row, rows);
}

ForwardInstance find_instance(DType dtype, int row, bool general, bool transposes) {
  if (transposes) return find_instance<E4m3, kFp8ForwardTilesCount, true>(row, general);
  if (dtype == DType::kE4m3) return find_instance<E4m3, kFp8ForwardTilesCount>(row, general);
  return dtype == DType::kBf16 ? find_instance<Bf16, kForwardTilesCount>(row, general)
                               : find_instance<Fp16, kForwardTilesCount>(row, general);
}

Status allow_shared_memory(const ForwardInstance& instance) {
  return to_status(
      cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, instance.smem_bytes),
      "shared memory of the forward kernel");
}

// Of the first `rows` rows.
Status prepare_instances(DType dtype, int rows, bool transposes) {
  for (int row = 0; row < rows; ++row) {
    for (const bool general : {false, true}) {
      TANDEM_RETURN_IF_ERROR(allow_shared_memory(find_instance(dtype, row, general, transposes)));
    }
  }
  return Status::ok();
}

Status encode_maps(const ForwardPlan& plan, ForwardParams* params) {
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.q, &params->q));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.k, &params->k));
  TANDEM_RETURN_IF_ERROR(encode_tensor_map(plan.v, &params->v));
  return encode_tensor_map(plan.out, &params->out);
}

// The work counter, and a packed problem's sequences.
Status launch_prepare(PrepareParams params, bool packed, ForwardWorkspace* workspace, cudaStream_t stream) {
  void* packed_arguments[] = {&params};
  void* dense_arguments[] = {&workspace};
  const cudaError_t error = packed
                                ? cudaLaunchKernel(reinterpret_cast<const void*>(&prepare_kernel), dim3(1),
                                                   dim3(kPrepareThreads), packed_arguments, kPrepareSmemBytes, stream)
                                : cudaLaunchKernel(reinterpret_cast<const void*>(&reset_kernel), dim3(1), dim3(1),
                                                   dense_arguments, 0, stream);
  return to_status(error, "the kernel that prepares the forward");
}

// May begin while the preparing kernel still runs: the scheduler warps wait for it.
Status launch_kernel(const ForwardInstance& instance, int64_t blocks, ForwardParams params, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned int>(blocks));
  config.blockDim = dim3(static_cast<unsigned int>(instance.threads));
  config.dynamicSmemBytes = static_cast<size_t>(instance.smem_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&params};
  return to_status(cudaLaunchKernelExC(&config, instance.kernel, arguments), "the forward kernel");
}

Status count_multiprocessors(int device, int* count) {
  return to_status(cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device), "SM count");
}

}  // namespace

Status prepare_forward() {
  TANDEM_RETURN_IF_ERROR(prepare_instances(DType::kBf16, kForwardTilesCount, false));
  TANDEM_RETURN_IF_ERROR(prepare_instances(DType::kFp16, kForwardTilesCount, false));
  TANDEM_RETURN_IF_ERROR(prepare_instances(DType::kE4m3, kFp8ForwardTilesCount, false));
  TANDEM_RETURN_IF_ERROR(prepare_instances(DType::kE4m3, kFp8ForwardTilesCount, true));
  for (const void* kernel :
       {reinterpret_cast<const void*>(&prepare_kernel), reinterpret_cast<const void*>(&reset_kernel)}) {
    cudaFuncAttributes attributes;
    TANDEM_RETURN_IF_ERROR(
        to_status(cudaFuncGetAttributes(&attributes, kernel), "loading the kernel that prepares the forward"));
  }
  return Status::ok();
}

Status launch_forward(const AttentionProblem& problem) {
  if (forward_is_empty(problem)) return Status::ok();
  const DeviceScope scope(problem.exec.device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  const ForwardPlan plan = plan_forward(problem);
  const ForwardInstance instance = find_instance(plan.dtype, plan.tiles_row, plan.general, plan.transposes);
  const auto stream = static_cast<cudaStream_t>(problem.exec.stream);
  int sms = 0;
  TANDEM_RETURN_IF_ERROR(count_multiprocessors(problem.exec.device_ordinal, &sms));
  TANDEM_RETURN_IF_ERROR(allow_shared_memory(instance));
  ForwardParams params = plan.params;
  TANDEM_RETURN_IF_ERROR(encode_maps(plan, &params));
  TANDEM_RETURN_IF_ERROR(launch_prepare(plan.prepare, problem.packed, params.workspace, stream));
  const int64_t blocks = min_of(max_of(sms - problem.exec.sm_margin, 1), plan.max_tiles);
  return launch_kernel(instance, blocks, params, stream);
}

}  // namespace tandem::sm90
