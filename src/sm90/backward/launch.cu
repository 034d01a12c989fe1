#include "sm90/backward/launch.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "sm90/backward/first_turns.cuh"
#include "sm90/backward/instance.h"
#include "sm90/backward/key_blocks.cuh"
#include "sm90/backward/plan.h"
#include "sm90/backward/postprocess.h"
#include "sm90/backward/preprocess.h"
#include "sm90/backward/tiles.h"
#include "sm90/cuda_call.h"
#include "sm90/launch_grid.h"
#include "sm90/tensor_map.h"

namespace tandem::sm90 {
namespace {

using InstanceOf = BackwardInstance (*)();

template <typename Element, int kRow>
constexpr InstanceOf general_instance() {
  if constexpr (has_general_instance(kRow)) {
    return &backward_instance<Element, kRow, true>;
  } else {
    return nullptr;
  }
}

// nullptr kernel: the row has no such instance.
template <typename Element, int... kRows>
BackwardInstance find_instance(int row, bool general, std::integer_sequence<int, kRows...>) {
  constexpr InstanceOf plain[] = {&backward_instance<Element, kRows, false>...};
  constexpr InstanceOf of_general[] = {general_instance<Element, kRows>()...};
  const InstanceOf found = general ? of_general[row] : plain[row];
  return found == nullptr ? BackwardInstance{} : found();
}

BackwardInstance find_instance(DType dtype, int row, bool general) {
  constexpr std::make_integer_sequence<int, kBackwardTilesCount> rows;
  return dtype == DType::kBf16 ? find_instance<Bf16>(row, general, rows) : find_instance<Fp16>(row, general, rows);
}

Status allow_shared_memory(const BackwardInstance& instance) {
  return to_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(instance.kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, instance.smem_bytes),
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

Status launch_key_blocks(const BackwardPlan& plan, cudaStream_t stream) {
  constexpr int kRecordsPerBlock = kKeyBlockThreads / 32;
  const Grid grid = {ceil_div(plan.max_records, kRecordsPerBlock), kKeyBlockThreads, 0, true};
  return launch_grid(&key_blocks_kernel, grid, plan.key_blocks, stream, "the kernel that plans the backward");
}

Status launch_first_turns(const BackwardPlan& plan, cudaStream_t stream) {
  if (plan.first_turns_blocks == 0) return Status::ok();
  const Grid grid = {plan.first_turns_blocks, kFirstTurnsThreads, 0, true};
  return launch_grid(&first_turns_kernel, grid, plan.key_blocks, stream, "the kernel that orders the backward's sums");
}

// dK and dV, and the sums of dQ.
Status launch_gradients(const BackwardPlan& plan, const Execution& exec) {
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  TANDEM_RETURN_IF_ERROR(launch_key_blocks(plan, stream));
  TANDEM_RETURN_IF_ERROR(launch_first_turns(plan, stream));
  int sms = 0;
  TANDEM_RETURN_IF_ERROR(
      to_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, exec.device_ordinal), "SM count"));
  const BackwardInstance instance = find_instance(plan.dtype, plan.tiles_row, plan.general);
  TANDEM_RETURN_IF_ERROR(allow_shared_memory(instance));
  BackwardParams params = plan.params;
  TANDEM_RETURN_IF_ERROR(encode_maps(plan, &params));
  const int64_t blocks = min_of(max_of(sms - exec.sm_margin, 1), plan.max_tiles);
  const Grid grid = {blocks, instance.threads, static_cast<uint32_t>(instance.smem_bytes), true};
  return launch_grid(instance.kernel, grid, params, stream, "the backward kernel");
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
  TANDEM_RETURN_IF_ERROR(load_kernel(&key_blocks_kernel, "loading the kernel that plans the backward"));
  TANDEM_RETURN_IF_ERROR(load_kernel(&first_turns_kernel, "loading the kernel that orders the backward's sums"));
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
