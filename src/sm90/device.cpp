#include "sm90/device.h"

#include <cuda_runtime_api.h>

#include "sm90/device_rules.h"

namespace tandem::sm90 {
namespace {

DeviceFacts find_facts(int ordinal) {
  DeviceFacts facts;
  facts.ordinal = ordinal;
  cudaDriverGetVersion(&facts.driver_version);
  cudaRuntimeGetVersion(&facts.runtime_version);
  cudaError_t error = cudaGetDeviceCount(&facts.count);
  cudaDeviceProp properties;
  if (error == cudaSuccess && ordinal < facts.count) {
    error = cudaGetDeviceProperties(&properties, ordinal);
    if (error == cudaSuccess) {
      facts.name = properties.name;
      facts.major = properties.major;
      facts.minor = properties.minor;
    }
  }
  if (error != cudaSuccess) facts.error = cudaGetErrorString(error);
  return facts;
}

}  // namespace

Status device_available(int ordinal) {
  // Asked before every call: two attributes cost next to nothing, the facts some milliseconds.
  int major = 0;
  int minor = 0;
  const bool known = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess &&
                     cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) == cudaSuccess;
  return known && is_hopper(major, minor) ? Status::ok() : check_device(find_facts(ordinal));
}

std::string device_description(int ordinal) {
  cudaDeviceProp properties;
  int driver_version = 0;
  cudaDriverGetVersion(&driver_version);
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) return "CUDA device " + std::to_string(ordinal);
  return std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) + " SMs, " +
         std::to_string(properties.totalGlobalMem >> 30) + " GiB, driver for CUDA " +
         std::to_string(driver_version / 1000) + "." + std::to_string(driver_version % 1000 / 10);
}

}  // namespace tandem::sm90
