#pragma once

#include <utility>

#include "cuda_check.h"

namespace tandem::gpu_test {

// Memory from the device's pool, which makes thousands of small problems quick; ordered on the default stream. HAZARD:
// other streams may use it once that has been synchronized with.
class PoolBuffer {
 public:
  PoolBuffer() : PoolBuffer(0) {}
  explicit PoolBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    keep_pool();
    TANDEM_CHECK_CUDA(cudaMallocAsync(&data_, bytes, nullptr));
  }
  ~PoolBuffer() {
    if (data_ != nullptr) cudaFreeAsync(data_, nullptr);
  }
  PoolBuffer(PoolBuffer&& other) noexcept : bytes_(other.bytes_), data_(other.data_) { other.data_ = nullptr; }
  PoolBuffer& operator=(PoolBuffer&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void fill(int byte) const {
    if (bytes_ > 0) TANDEM_CHECK_CUDA(cudaMemsetAsync(data_, byte, bytes_, nullptr));
  }
  void from_host(const void* source) const {
    if (bytes_ > 0) TANDEM_CHECK_CUDA(cudaMemcpy(data_, source, bytes_, cudaMemcpyHostToDevice));
  }
  void to_host(void* target) const {
    if (bytes_ > 0) TANDEM_CHECK_CUDA(cudaMemcpy(target, data_, bytes_, cudaMemcpyDeviceToHost));
  }

 private:
  // Freed memory stays in the pool.
  static void keep_pool() {
    static const bool kept = [] {
      cudaMemPool_t pool;
      uint64_t all = ~uint64_t{0};
      TANDEM_CHECK_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
      TANDEM_CHECK_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
      return true;
    }();
    static_cast<void>(kept);
  }

  size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace tandem::gpu_test
