#include "sm90/merge/launch.h"

#include <cuda_runtime_api.h>

#include "sm90/cuda_call.h"
#include "sm90/merge/kernel.cuh"
#include "sm90/merge/plan.h"

namespace tandem::sm90 {
namespace {

using MergeKernel = void (*)(MergeProblem, int64_t);

MergeKernel kernel_of(int columns) {
  return columns == 1 ? merge_kernel<1> : merge_kernel<kMergeWideColumns>;
}

}  // namespace

Status prepare_merge() {
  for (const int columns : {1, kMergeWideColumns}) {
    cudaFuncAttributes attributes;
    TANDEM_RETURN_IF_ERROR(
        to_status(cudaFuncGetAttributes(&attributes, kernel_of(columns)), "loading the merge kernel"));
  }
  return Status::ok();
}

Status launch_merge(const MergeProblem& problem) {
  MergePlan plan = plan_merge(problem);
  if (plan.runs == 0) return Status::ok();
  const DeviceScope scope(problem.exec.device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  int sms = 0;
  TANDEM_RETURN_IF_ERROR(
      to_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, problem.exec.device_ordinal), "SM count"));
  const auto blocks =
      static_cast<unsigned int>(min_of(max_of(sms - problem.exec.sm_margin, 1), ceil_div(plan.runs, kMergeThreads)));
  MergeProblem on_device = problem;
  void* arguments[] = {&on_device, &plan.runs};
  return to_status(cudaLaunchKernel(kernel_of(plan.columns), dim3(blocks), dim3(kMergeThreads), arguments, 0,
                                    static_cast<cudaStream_t>(problem.exec.stream)),
                   "the merge kernel");
}

}  // namespace tandem::sm90
