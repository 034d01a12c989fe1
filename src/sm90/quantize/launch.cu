#include "sm90/quantize/launch.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "sm90/launch_grid.h"
#include "sm90/quantize/narrow.cuh"
#include "sm90/quantize/plain.cuh"
#include "sm90/quantize/plan.h"
#include "sm90/quantize/prepare.cuh"
#include "sm90/quantize/turned.cuh"

namespace tandem::sm90 {
namespace {

using QuantizeKernelPointer = void (*)(QuantizeParams);

template <typename Element, int... kRows>
QuantizeKernelPointer kernel_of(QuantizeKernel kernel, int row, std::integer_sequence<int, kRows...>) {
  constexpr QuantizeKernelPointer plain[] = {&quantize_plain_kernel<QuantizeTraits<Element, kRows>, false>...};
  constexpr QuantizeKernelPointer transposed[] = {&quantize_plain_kernel<QuantizeTraits<Element, kRows>, true>...};
  constexpr QuantizeKernelPointer rotated[] = {&quantize_turned_kernel<QuantizeTraits<Element, kRows>, false>...};
  constexpr QuantizeKernelPointer turned[] = {&quantize_turned_kernel<QuantizeTraits<Element, kRows>, true>...};
  switch (kernel) {
    case QuantizeKernel::kPlain: return plain[row];
    case QuantizeKernel::kTransposed: return transposed[row];
    case QuantizeKernel::kRotated: return rotated[row];
    case QuantizeKernel::kTurned: return turned[row];
    default: return &quantize_narrow_kernel<Element>;
  }
}

QuantizeKernelPointer kernel_of(DType dtype, QuantizeKernel kernel, int row) {
  constexpr std::make_integer_sequence<int, kQuantizeTilesCount> rows;
  return dtype == DType::kBf16 ? kernel_of<Bf16>(kernel, row, rows) : kernel_of<Fp16>(kernel, row, rows);
}

// Loads the kernel, too.
Status allow_shared_memory(QuantizeKernelPointer kernel, uint32_t bytes) {
  return to_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                   "the shared memory of a quantising kernel");
}

Status launch_preparation(const QuantizePlan& plan, cudaStream_t stream) {
  if (plan.prepare_blocks == 0) return Status::ok();
  const Grid grid = {plan.prepare_blocks, kPrepareThreads, kPrepareSmemBytes, false};
  return launch_grid(&prepare_quantize_kernel, grid, plan.prepare, stream, "the kernel that prepares a quantisation");
}

Status launch_blocks(const QuantizePlan& plan, cudaStream_t stream) {
  if (plan.blocks == 0) return Status::ok();
  const QuantizeKernelPointer kernel = kernel_of(plan.dtype, plan.kernel, plan.tiles_row);
  TANDEM_RETURN_IF_ERROR(allow_shared_memory(kernel, plan.smem_bytes));
  Grid grid = {plan.largest_blocks, plan.threads, plan.smem_bytes, plan.prepare_blocks > 0};
  if (plan.largest_blocks > 0) {
    QuantizeParams params = plan.params;
    params.pass = QuantizePass::kLargest;
    TANDEM_RETURN_IF_ERROR(launch_grid(kernel, grid, params, stream, "the kernel that finds scales"));
  }
  grid.blocks = plan.blocks;
  return launch_grid(kernel, grid, plan.params, stream, "the quantising kernel");
}

}  // namespace

Status prepare_quantize() {
  TANDEM_RETURN_IF_ERROR(load_kernel(&prepare_quantize_kernel, "loading the kernel that prepares a quantisation"));
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    TANDEM_RETURN_IF_ERROR(
        load_kernel(kernel_of(dtype, QuantizeKernel::kNarrow, 0), "loading the narrow quantising kernel"));
    for (int row = 0; row < kQuantizeTilesCount; ++row) {
      for (const QuantizeKernel kernel :
           {QuantizeKernel::kPlain, QuantizeKernel::kTransposed, QuantizeKernel::kRotated, QuantizeKernel::kTurned}) {
        TANDEM_RETURN_IF_ERROR(load_kernel(kernel_of(dtype, kernel, row), "loading the quantising kernels"));
      }
    }
  }
  return Status::ok();
}

Status launch_quantize(const QuantizeProblem& problem) {
  const DeviceScope scope(problem.exec.device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  const QuantizePlan plan = plan_quantize(problem);
  const auto stream = static_cast<cudaStream_t>(problem.exec.stream);
  TANDEM_RETURN_IF_ERROR(launch_preparation(plan, stream));
  return launch_blocks(plan, stream);
}

}  // namespace tandem::sm90
