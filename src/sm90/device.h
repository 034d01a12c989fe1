#pragma once

#include <string>

#include "core/status.h"

// Which device there is. All of it works where there is no driver.
namespace tandem::sm90 {

Status device_available(int ordinal);
std::string device_description(int ordinal);  // "NVIDIA H200, 132 SMs, 139 GiB, driver for CUDA 13.0"

}  // namespace tandem::sm90
