#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/status.h"
#include "sm90/cuda_call.h"

namespace tandem::sm90 {

struct Grid {
  int64_t blocks = 1;
  int threads = 0;
  uint32_t smem_bytes = 0;
  // May begin while the kernel before it in the stream still runs: its threads wait for that. Programmatic dependent
  // launch.
  bool dependent = false;
};

// `params`: the kernel's only parameter. `what`: for the error's words.
template <typename Params>
Status launch_grid(void (*kernel)(Params), const Grid& grid, Params params, cudaStream_t stream, const char* what) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned int>(grid.blocks));
  config.blockDim = dim3(static_cast<unsigned int>(grid.threads));
  config.dynamicSmemBytes = grid.smem_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = grid.dependent ? 1 : 0;
  void* arguments[] = {&params};
  return to_status(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments), what);
}

// So that later launches can be captured.
template <typename Params>
Status load_kernel(void (*kernel)(Params), const char* what) {
  cudaFuncAttributes attributes;
  return to_status(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)), what);
}

}  // namespace tandem::sm90
