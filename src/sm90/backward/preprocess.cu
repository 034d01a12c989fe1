#include "sm90/backward/preprocess.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "sm90/backward/prepare.cuh"
#include "sm90/backward/preprocess.cuh"
#include "sm90/launch_grid.h"

namespace tandem::sm90 {
namespace {

using PreprocessKernel = void (*)(PreprocessParams);

template <typename Element, int... kRows>
PreprocessKernel kernel_of(int row, std::integer_sequence<int, kRows...>) {
  constexpr PreprocessKernel kernels[] = {&preprocess_kernel<QBlockTraits<Element, kRows>>...};
  return kernels[row];
}

PreprocessKernel kernel_of(DType dtype, int row) {
  constexpr std::make_integer_sequence<int, kBackwardTilesCount> rows;
  return dtype == DType::kBf16 ? kernel_of<Bf16>(row, rows) : kernel_of<Fp16>(row, rows);
}

}  // namespace

Status prepare_preprocess() {
  TANDEM_RETURN_IF_ERROR(load_kernel(&prepare_backward_kernel, "loading the kernel that prepares the backward"));
  for (int row = 0; row < kBackwardTilesCount; ++row) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      TANDEM_RETURN_IF_ERROR(load_kernel(kernel_of(dtype, row), "loading the kernel before the backward"));
    }
  }
  return Status::ok();
}

Status launch_preprocess(const PreprocessPlan& plan, void* stream) {
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (plan.packed) {
    const Grid grid = {1, kPrepareThreads, kPrepareSmemBytes, false};
    TANDEM_RETURN_IF_ERROR(launch_grid(&prepare_backward_kernel, grid, plan.prepare, cuda_stream,
                                       "the kernel that prepares the backward"));
  }
  const Grid grid = {plan.blocks, kQBlockThreads, plan.smem_bytes, plan.packed};
  return launch_grid(kernel_of(plan.dtype, plan.tiles_row), grid, plan.params, cuda_stream,
                     "the kernel before the backward");
}

}  // namespace tandem::sm90
