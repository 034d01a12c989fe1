#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "core/status.h"

namespace tandem::sm90 {

// `what` failed; or did not.
inline Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  return {TANDEM_DEVICE_ERROR, std::string(what) + ": " + cudaGetErrorString(error)};
}

// Makes a device current for the calling thread, and on the way out the one that was [14].
class DeviceScope {
 public:
  explicit DeviceScope(int device) : status_(to_status(enter(device), "making the device current")) {}
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const Status& status() const { return status_; }

 private:
  cudaError_t enter(int device) {
    cudaError_t error = cudaGetDevice(&before_);
    if (error != cudaSuccess || before_ == device) return error;
    error = cudaSetDevice(device);
    changed_ = error == cudaSuccess;
    return error;
  }

  int before_ = 0;
  bool changed_ = false;
  Status status_;  // the last: enter() sets the others
};

}  // namespace tandem::sm90
