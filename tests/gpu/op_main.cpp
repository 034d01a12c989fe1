// The operator tests on the GPU: those of tests/op, and those of the GPU only. 77: there is no Hopper GPU.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda_check.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string reason = tandem::gpu_test::missing_gpu();
  if (!reason.empty() && !::testing::GTEST_FLAG(list_tests)) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    const char* required = std::getenv("TANDEM_REQUIRE_GPU");
    return required != nullptr && std::string(required) == "1" ? 1 : 77;
  }
  return RUN_ALL_TESTS();
}
