#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// Memory and clock of a GPU, for calls that run there, on its default stream. cuda/gpu.cpp has them where CUDA was
// found; in a program without CUDA (no_gpu.cpp) each is a CliError(kLibraryRefused).
namespace tandem::cli {

class GpuBuffer {
 public:
  GpuBuffer(int32_t device, uint64_t bytes);
  GpuBuffer(GpuBuffer&& other) noexcept;
  GpuBuffer& operator=(GpuBuffer&&) = delete;
  ~GpuBuffer();

  void* data() const { return data_; }
  void upload(const void* host);    // all of it
  void download(void* host) const;  // after what is queued before

 private:
  int32_t device_;
  uint64_t bytes_;
  void* data_ = nullptr;
};

void wait_for_gpu(int32_t device);

// Queues `count` calls one behind the other and gives the milliseconds of each, by the GPU's own clock.
std::vector<double> time_on_gpu(int32_t device, int count, const std::function<void()>& call);

std::string gpu_name(int32_t device);

}  // namespace tandem::cli
