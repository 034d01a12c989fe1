#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "target.h"

namespace tandem::gpu_test {

// TANDEM_GPU_QUICK=1: fewer head dims and problems, in under a minute, for the development of a kernel.
bool is_quick();

// bf16 and e4m3 in each instance of the kernels, without the smaller head dims that run in it.
std::vector<optest::Target> instance_targets();

// e4m3 in each of its instances, with both layouts of V; without what the backend refuses, unless TANDEM_REQUIRE_FP8=1
// says that a refusal is a fault.
std::vector<optest::Target> fp8_targets();
bool fp8_is_required();
std::string fp8_refusal(const optest::Target& target);

// Why the backend does not differentiate a problem of these types and sizes; empty: it does. With `deterministic`, in
// the mode of that name.
std::string backward_refusal(const optest::Problem& problem, bool deterministic = false);
std::string backward_refusal(const optest::Target& target, bool deterministic = false);

// Whether a refusal is a fault: of the instances named by TANDEM_REQUIRE_BACKWARD, such as "64,128,192/128" or "all",
// with "deterministic" also in that mode. If it is not set, those that op_targets.cpp says are there. "none": none;
// TANDEM_FORWARD_ONLY=1: gradients are not tested.
bool backward_is_required(const optest::Problem& problem, bool deterministic = false);
bool is_forward_only();

// Has problem's backward to be tested? If it is refused, only where it must not be.
bool has_backward(const optest::Problem& problem);

// Prints each target and what it has of the backward.
void list_backward_targets();

inline std::string target_name(const ::testing::TestParamInfo<optest::Target>& info) {
  return info.param.name;
}

}  // namespace tandem::gpu_test
