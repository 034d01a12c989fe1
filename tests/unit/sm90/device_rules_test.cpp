#include "sm90/device_rules.h"

#include <gtest/gtest.h>

namespace tandem::sm90 {
namespace {

DeviceFacts h200() {
  DeviceFacts facts;
  facts.ordinal = 1;
  facts.driver_version = 13000;
  facts.runtime_version = 13000;
  facts.count = 2;
  facts.name = "NVIDIA H200";
  facts.major = 9;
  return facts;
}

void expect_refused(const DeviceFacts& facts, const std::string& sentence) {
  const Status status = check_device(facts);
  EXPECT_EQ(status.code(), TANDEM_NO_DEVICE);
  EXPECT_EQ(status.message(), sentence);
}

TEST(DeviceRules, HopperIsServed) {
  EXPECT_TRUE(check_device(h200()).is_ok());
  DeviceFacts older_minor = h200();  // of the same major version: the driver promises to run it
  older_minor.runtime_version = 13020;
  EXPECT_TRUE(check_device(older_minor).is_ok());
}

TEST(DeviceRules, OtherGenerationsAreNamed) {  // C103
  for (const auto& [name, major, minor] :
       {std::tuple{"NVIDIA A100-SXM4-80GB", 8, 0}, {"NVIDIA L40S", 8, 9}, {"NVIDIA B200", 10, 0}}) {
    DeviceFacts facts = h200();
    facts.name = name;
    facts.major = major;
    facts.minor = minor;
    expect_refused(facts, "CUDA device 1 (" + std::string(name) + ") has compute capability " + std::to_string(major) +
                              "." + std::to_string(minor) + "; the sm90 backend runs on 9.0 (Hopper) only");
  }
}

TEST(DeviceRules, DriversAndDevicesThatAreNotThere) {
  DeviceFacts facts = h200();
  facts.driver_version = 0;
  facts.count = 0;
  facts.error = "CUDA driver version is insufficient for CUDA runtime version";
  expect_refused(facts, "CUDA device 1 cannot be used: there is no NVIDIA driver on this machine");
  facts.driver_version = 12040;
  expect_refused(
      facts,
      "CUDA device 1 cannot be used: the NVIDIA driver is for CUDA 12.4, but this library needs a driver for "
      "CUDA 13.0 or newer");
  facts.driver_version = 13000;
  facts.error = "no CUDA-capable device is detected";
  expect_refused(facts, "CUDA device 1 cannot be used: no CUDA-capable device is detected");
  facts = h200();
  facts.count = 1;
  expect_refused(facts, "CUDA device 1 does not exist: this process sees 1 device, numbered from 0");
  facts.ordinal = 7;
  facts.count = 4;
  expect_refused(facts, "CUDA device 7 does not exist: this process sees 4 devices, numbered from 0");
}

}  // namespace
}  // namespace tandem::sm90
