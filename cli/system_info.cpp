#include "system_info.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace tandem::cli {
namespace {

// The value of the first line "key : value" of Linux's /proc/cpuinfo; "" if there is none.
std::string cpuinfo_value(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

}  // namespace

std::string cpu_model() {
  const std::string model = cpuinfo_value("model name");
  return model.empty() ? "unknown" : model;
}

std::string nvidia_driver() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  file >> version;
  return version;
}

std::vector<std::string> cpu_features() {
  static const char* const kInteresting[] = {
      "ssse3",    "sse4_1",   "sse4_2",      "avx",         "f16c",     "fma",      "avx2",  "avx512f", "avx512bw",
      "avx512dq", "avx512vl", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve",     "bf16"};
  std::istringstream flags(cpuinfo_value("flags") + " " + cpuinfo_value("Features"));
  const std::vector<std::string> present{std::istream_iterator<std::string>(flags), {}};
  std::vector<std::string> features;
  for (const char* feature : kInteresting) {
    if (std::find(present.begin(), present.end(), feature) != present.end()) features.emplace_back(feature);
  }
  return features;
}

}  // namespace tandem::cli
