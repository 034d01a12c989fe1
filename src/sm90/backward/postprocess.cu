#include "sm90/backward/postprocess.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "sm90/backward/postprocess.cuh"
#include "sm90/launch_grid.h"

namespace tandem::sm90 {
namespace {

using PostprocessKernel = void (*)(PostprocessParams);

template <typename Element, int... kRows>
PostprocessKernel kernel_of(int row, std::integer_sequence<int, kRows...>) {
  constexpr PostprocessKernel kernels[] = {&postprocess_kernel<QBlockTraits<Element, kRows>>...};
  return kernels[row];
}

PostprocessKernel kernel_of(DType dtype, int row) {
  constexpr std::make_integer_sequence<int, kBackwardTilesCount> rows;
  return dtype == DType::kBf16 ? kernel_of<Bf16>(row, rows) : kernel_of<Fp16>(row, rows);
}

}  // namespace

Status prepare_postprocess() {
  for (int row = 0; row < kBackwardTilesCount; ++row) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      TANDEM_RETURN_IF_ERROR(load_kernel(kernel_of(dtype, row), "loading the kernel after the backward"));
    }
  }
  return Status::ok();
}

Status launch_postprocess(const PostprocessPlan& plan, void* stream) {
  if (plan.blocks == 0) return Status::ok();
  const Grid grid = {plan.blocks, kQBlockThreads, kPostprocessSmemBytes, true};
  return launch_grid(kernel_of(plan.dtype, plan.tiles_row), grid, plan.params, static_cast<cudaStream_t>(stream),
                     "the kernel after the backward");
}

}  // namespace tandem::sm90
