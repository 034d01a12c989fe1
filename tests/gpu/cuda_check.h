#pragma once

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tandem::gpu_test {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
#define TANDEM_CHECK_CUDA(call) ::tandem::gpu_test::check((call), #call)

// Why the GPU tests cannot run here; empty: they can.
inline std::string missing_gpu() {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (properties.major != 9) return std::string(properties.name) + " is not a Hopper GPU";
  return "";
}

// Global memory of one size, freed at the end of its scope.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) { TANDEM_CHECK_CUDA(cudaMalloc(&data_, bytes == 0 ? 1 : bytes)); }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void fill(int byte) const { TANDEM_CHECK_CUDA(cudaMemset(data_, byte, bytes_)); }
  void from_host(const void* source) const {
    TANDEM_CHECK_CUDA(cudaMemcpy(data_, source, bytes_, cudaMemcpyHostToDevice));
  }
  void to_host(void* target) const { TANDEM_CHECK_CUDA(cudaMemcpy(target, data_, bytes_, cudaMemcpyDeviceToHost)); }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace tandem::gpu_test

// First line of a test: skips it where there is no Hopper GPU, or fails it if TANDEM_REQUIRE_GPU=1.
#define TANDEM_NEEDS_GPU()                                                                 \
  do {                                                                                     \
    if (const std::string reason_ = ::tandem::gpu_test::missing_gpu(); !reason_.empty()) { \
      const char* required_ = std::getenv("TANDEM_REQUIRE_GPU");                           \
      if (required_ != nullptr && std::string(required_) == "1") FAIL() << reason_;        \
      GTEST_SKIP() << reason_;                                                             \
    }                                                                                      \
  } while (0)
