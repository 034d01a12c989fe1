#include "gpu.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "exit_codes.h"

namespace tandem::cli {
namespace {

void require(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  throw CliError(kLibraryRefused, what + ": " + cudaGetErrorString(error) + ".");
}

void choose(int32_t device) {
  require(cudaSetDevice(device), "CUDA device " + std::to_string(device) + " cannot be used");
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

Event record() {
  cudaEvent_t event = nullptr;
  require(cudaEventCreate(&event), "an event cannot be made");
  Event owner(event);
  require(cudaEventRecord(event, nullptr), "an event cannot be recorded");
  return owner;
}

}  // namespace

GpuBuffer::GpuBuffer(int32_t device, uint64_t bytes) : device_(device), bytes_(bytes) {
  choose(device);
  // An empty tensor still has an address.
  require(cudaMalloc(&data_, std::max<uint64_t>(bytes, 1)), "the GPU has no " + std::to_string(bytes) + " bytes left");
}

GpuBuffer::GpuBuffer(GpuBuffer&& other) noexcept
    : device_(other.device_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

GpuBuffer::~GpuBuffer() {
  cudaFree(data_);
}

void GpuBuffer::upload(const void* host) {
  choose(device_);
  require(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice), "copying to the GPU failed");
}

void GpuBuffer::download(void* host) const {
  choose(device_);
  require(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "the GPU failed");
}

void wait_for_gpu(int32_t device) {
  choose(device);
  require(cudaDeviceSynchronize(), "the GPU failed");
}

std::vector<double> time_on_gpu(int32_t device, int count, const std::function<void()>& call) {
  choose(device);
  std::vector<Event> events;
  events.push_back(record());
  for (int i = 0; i < count; ++i) {
    call();
    events.push_back(record());
  }
  wait_for_gpu(device);
  std::vector<double> times;
  for (size_t i = 1; i < events.size(); ++i) {
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, events[i - 1].get(), events[i].get()), "timing failed");
    times.push_back(milliseconds);
  }
  return times;
}

std::string gpu_name(int32_t device) {
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, device), "CUDA device " + std::to_string(device) + " cannot be used");
  return properties.name;
}

}  // namespace tandem::cli
