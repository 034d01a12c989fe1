#include "wrappers/run.h"

#include <exception>

#include "cuda_check.h"
#include "sm90/ptx/shared.cuh"
#include "sm90/tensor_map.h"
#include "wrappers/cases.cuh"

namespace tandem::sm90::wrappers {
namespace {

using gpu_test::DeviceBuffer;

template <typename Case>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Case::kThreads, 1) case_kernel(const TANDEM_GRID_CONSTANT Params params) {
  if (Case::kClusterSize == 1 && ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  Case::run(params);
}

template <typename Case>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Case::kPrepareThreads, 1) prepare_kernel(const TANDEM_GRID_CONSTANT Params params) {
  Case::prepare(params);
}

void encode(const TensorMapSpec& spec, ptx::TensorMap* map) {
  if (spec.rank == 0) return;
  const Status status = encode_tensor_map(spec, map);
  if (!status.is_ok()) throw std::runtime_error(status.message());
}

template <typename Case>
void launch(const Params& params) {
  const auto kernel = case_kernel<Case>;
  TANDEM_CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchAttribute attribute;
  if constexpr (Case::kPrepareThreads > 0) {
    prepare_kernel<Case><<<1, Case::kPrepareThreads>>>(params);
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  } else {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {Case::kClusterSize, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(Case::kBlocks);
  config.blockDim = dim3(Case::kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  TANDEM_CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, params));
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

template <typename Case>
CaseResult run_case(uint64_t seed) {
  CaseResult result;
  Random random(seed);
  Words in(Case::kInWords);
  Case::input(random, in);
  result.want.assign(Case::kOutWords, Case::kOutFill);
  result.got = result.want;
  const Words filled = result.want;
  Case::expect(in, result.want);
  try {
    const DeviceBuffer device_in(in.size() * 4);
    const DeviceBuffer device_out(filled.size() * 4);
    device_in.from_host(in.data());
    device_out.from_host(filled.data());
    Params params = {};
    params.in = device_in.as<uint32_t>();
    params.out = device_out.as<uint32_t>();
    encode(Case::load_map(params.in), &params.load_map);
    encode(Case::store_map(params.out), &params.store_map);
    launch<Case>(params);
    device_out.to_host(result.got.data());
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  return result;
}

}  // namespace

std::vector<NamedCase> gpu_cases() {
  std::vector<NamedCase> cases;
  for_each_case([&](auto test) {
    using Case = decltype(test);
    cases.push_back({case_name(test), Case::kKind, Case::kRelative, Case::kAbsolute, run_case<Case>});
  });
  return cases;
}

}  // namespace tandem::sm90::wrappers
