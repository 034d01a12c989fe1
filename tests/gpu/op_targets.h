#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "target.h"

namespace tandem::gpu_test {

// TANDEM_GPU_QUICK=1: fewer head dims and problems, in under a minute, for the development of a kernel.
bool is_quick();

// bf16 in each instance of the forward kernel, without the smaller head dims that run in it.
std::vector<optest::Target> instance_targets();

inline std::string target_name(const ::testing::TestParamInfo<optest::Target>& info) {
  return info.param.name;
}

}  // namespace tandem::gpu_test
