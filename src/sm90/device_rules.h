#pragma once

#include <string>

#include "core/status.h"

namespace tandem::sm90 {

// What the CUDA runtime says about a device. Versions as CUDA counts them: 13020 is 13.2.
struct DeviceFacts {
  int ordinal = 0;
  int driver_version = 0;   // the newest CUDA that the driver knows; 0: there is no driver
  int runtime_version = 0;  // that the library was built with
  std::string error;        // in the runtime's words, if it could not count devices
  int count = 0;            // of devices that this process sees
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
};

// wgmma and setmaxnreg are in no other generation, before or after.
constexpr bool is_hopper(int major, int minor) {
  return major == 9 && minor == 0;
}

// Ok, or in one sentence why the kernels cannot run on this device [15].
Status check_device(const DeviceFacts& facts);

}  // namespace tandem::sm90
