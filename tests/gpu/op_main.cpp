// The operator tests on the GPU: those of tests/op, and those of the GPU only. 77: there is no Hopper GPU.
// --list_backward_targets: says what each target has of the backward, and ends.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda_check.h"
#include "op_targets.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string reason = tandem::gpu_test::missing_gpu();
  if (!reason.empty() && !::testing::GTEST_FLAG(list_tests)) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    const char* required = std::getenv("TANDEM_REQUIRE_GPU");
    return required != nullptr && std::string(required) == "1" ? 1 : 77;
  }
  if (argc == 2 && std::string(argv[1]) == "--list_backward_targets") {
    tandem::gpu_test::list_backward_targets();
    return 0;
  }
  return RUN_ALL_TESTS();
}
