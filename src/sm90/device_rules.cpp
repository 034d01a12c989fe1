#include "sm90/device_rules.h"

namespace tandem::sm90 {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status no_device(const DeviceFacts& facts, const std::string& what) {
  return {TANDEM_NO_DEVICE, "CUDA device " + std::to_string(facts.ordinal) + " " + what};
}

}  // namespace

Status check_device(const DeviceFacts& facts) {
  if (facts.driver_version == 0) return no_device(facts, "cannot be used: there is no NVIDIA driver on this machine");
  if (facts.driver_version / 1000 < facts.runtime_version / 1000) {
    return no_device(facts, "cannot be used: the NVIDIA driver is for CUDA " + version_text(facts.driver_version) +
                                ", but this library needs a driver for CUDA " + version_text(facts.runtime_version) +
                                " or newer");
  }
  if (!facts.error.empty()) return no_device(facts, "cannot be used: " + facts.error);
  if (facts.ordinal >= facts.count) {
    return no_device(facts, "does not exist: this process sees " + std::to_string(facts.count) +
                                (facts.count == 1 ? " device" : " devices") + ", numbered from 0");
  }
  if (!is_hopper(facts.major, facts.minor)) {
    return no_device(facts, "(" + facts.name + ") has compute capability " + std::to_string(facts.major) + "." +
                                std::to_string(facts.minor) + "; the sm90 backend runs on 9.0 (Hopper) only");
  }
  return Status::ok();
}

}  // namespace tandem::sm90
