// tandem.hpp, and that it can be used beside the library's own headers, whose namespace it shares.
#include "tandem/tandem.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/backend.h"
#include "core/problem.h"
#include "core/sequence.h"

namespace tandem {

struct MyHalf {
  uint16_t bits;
};
template <>
struct ElementTypeOf<MyHalf> {
  static constexpr ElementType value = ElementType::kFp16;
};

namespace {

TEST(CppHeader, ViewsOfContiguousMemory) {
  const float data[24] = {};
  const tandem_tensor tensor = view(data, {2, 3, 4});
  EXPECT_EQ(tensor.data, data);
  EXPECT_EQ(tensor.dtype, TANDEM_FP32);
  EXPECT_EQ(tensor.ndim, 3);
  EXPECT_EQ(tensor.shape[2], 4);
  EXPECT_EQ(tensor.stride[0], 12);
  EXPECT_EQ(tensor.stride[1], 4);
  EXPECT_EQ(tensor.stride[2], 1);
  EXPECT_EQ(view(static_cast<const double*>(nullptr), {1}).dtype, TANDEM_FP64);
  EXPECT_EQ(view(static_cast<const int32_t*>(nullptr), {1}).dtype, TANDEM_INT32);
  EXPECT_EQ(view(static_cast<const MyHalf*>(nullptr), {1}).dtype, TANDEM_FP16);
}

TEST(CppHeader, ViewsWithStrides) {
  const tandem_tensor tensor = view(nullptr, ElementType::kBf16, {2, 3}, {0, 7});
  EXPECT_EQ(tensor.dtype, TANDEM_BF16);
  EXPECT_EQ(tensor.stride[0], 0);
  EXPECT_EQ(tensor.stride[1], 7);
  EXPECT_THROW(view(nullptr, ElementType::kBf16, {2, 3}, {1}), Error);
  EXPECT_THROW(view(nullptr, ElementType::kBf16, {1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST(CppHeader, ParamsAskForPlainAttention) {
  EXPECT_EQ(ForwardParams().struct_size, sizeof(tandem_forward_params));
  EXPECT_EQ(MergeParams().struct_size, sizeof(tandem_merge_params));
  EXPECT_EQ(VarlenBackwardParams().has_softmax_scale, 0);
}

TEST(CppHeader, ErrorsCarryCodeAndWords) {
  try {
    check(ForwardParams());
    FAIL() << "q is required";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), TANDEM_INVALID_ARGUMENT);
    EXPECT_STREQ(error.what(), "q is absent (its ndim is 0); it is required");
  }
}

TEST(CppHeader, RunsWithAHostWorkspace) {  // C67: scores 0 and ln 3
  const double q = 1, k[2] = {0, std::log(3.0)}, v[2] = {0, 4};
  double out = -1, lse = -1;
  ForwardParams params;
  params.q = view(&q, {1, 1, 1, 1});
  params.k = view(k, {1, 2, 1, 1});
  params.v = view(v, {1, 2, 1, 1});
  params.out = view(&out, {1, 1, 1, 1});
  params.lse = view(&lse, {1, 1, 1});
  params.exec.backend = TANDEM_BACKEND_REFERENCE;
  check(params);
  HostWorkspace workspace;
  run(params, workspace);
  EXPECT_NEAR(out, 3.0, 1e-14);
  EXPECT_NEAR(lse, std::log(4.0), 1e-14);
  params.exec.device.type = TANDEM_CUDA;
  EXPECT_THROW(run(params, workspace), Error);
}

TEST(CppHeader, HostWorkspaceGrowsAndMoves) {
  HostWorkspace workspace;
  workspace.reserve({100, 64});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % 64, 0u);
  void* const first = workspace.data();
  workspace.reserve({50, 16});
  EXPECT_EQ(workspace.data(), first);
  workspace.reserve({10, 4096});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.data()) % 4096, 0u);
  EXPECT_GE(workspace.bytes(), 100u);
  HostWorkspace other = std::move(workspace);
  EXPECT_EQ(workspace.data(), nullptr);
  EXPECT_GE(other.bytes(), 100u);
  workspace = std::move(other);
  EXPECT_GE(workspace.bytes(), 100u);
  workspace.release();
  EXPECT_EQ(workspace.bytes(), 0u);
}

}  // namespace
}  // namespace tandem
