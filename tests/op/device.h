#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host_tensor.h"
#include "tandem/tandem.h"

namespace tandem::optest {

// Where a backend's calls run if not on the CPU: memory on a device, and a stream of its own.
class Device {
 public:
  virtual ~Device() = default;
  virtual tandem_device id() const = 0;
  virtual void* stream() const = 0;
  // A copy in new memory of the device, at the same place modulo 256 as the original. It is freed with the Device.
  virtual uint8_t* upload(const uint8_t* bytes, size_t count) = 0;
  // After everything on the stream.
  virtual void download(uint8_t* bytes, const uint8_t* source, size_t count) = 0;
};

// Null for a backend of the CPU. Programs choose by what they link: targets_cpu.cpp, or the GPU's tests/gpu/targets.cu.
std::unique_ptr<Device> open_device(int32_t backend);

// A call's tensors in the memory that its backend wants: copies that come home after the call, or, on the CPU, the
// tensors themselves.
class CallMemory {
 public:
  explicit CallMemory(int32_t backend) : device_(open_device(backend)) {}
  void set_place(tandem_execution& exec) const;
  tandem_tensor view(HostTensor& tensor);
  uint8_t* address(std::vector<uint8_t>& storage);
  // Waits for the call.
  void bring_home();

 private:
  std::unique_ptr<Device> device_;
  std::vector<std::pair<std::vector<uint8_t>*, uint8_t*>> copies_;
};

}  // namespace tandem::optest
