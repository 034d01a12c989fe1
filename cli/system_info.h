#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

std::string cpu_model();                  // "unknown" where /proc/cpuinfo does not say
std::string nvidia_driver();              // "580.159.04"; "" where Linux does not say
std::vector<std::string> cpu_features();  // the SIMD features of the CPU that attention can profit from

}  // namespace tandem::cli
