// The Hopper backend through the C interface: queries, prepare, checked mode, graphs, devices. What it computes is
// tested beside the kernels.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda_check.h"
#include "tandem/tandem.hpp"

namespace tandem::gpu_test {
namespace {

constexpr tandem_device kDevice = {TANDEM_CUDA, 0};
constexpr int64_t kRows = 200;
constexpr int64_t kHeads = 2;
constexpr int64_t kHeadDim = 128;
constexpr float kValue = 0.5f;
constexpr auto kBf16 = ElementType::kBf16;

std::vector<uint16_t> constant(float value) {
  return std::vector<uint16_t>(static_cast<size_t>(kRows * kHeads * kHeadDim), to_bf16(value).bits);
}

// Two packed sequences of bf16 with equal keys and equal values: O is that value, LSE the score + ln(keys).
class PackedCall {
 public:
  explicit PackedCall(int32_t device = 0) {
    q_.from_host(constant(1).data());
    k_.from_host(constant(0.25f).data());
    v_.from_host(constant(kValue).data());
    set_offsets({0, 60, 200}, {0, 130, 200});
    const auto tensor = [](const DeviceBuffer& buffer) {
      return view(buffer.as<void>(), kBf16, {kRows, kHeads, kHeadDim});
    };
    params.exec.device = {TANDEM_CUDA, device};
    params.q = tensor(q_);
    params.k = tensor(k_);
    params.v = tensor(v_);
    params.out = tensor(out_);
    params.lse = view(lse_.as<float>(), {kHeads, kRows});
    params.cu_seqlens_q = view(offsets_q_.as<int32_t>(), {3});
    params.cu_seqlens_k = view(offsets_k_.as<int32_t>(), {3});
    params.exec.workspace = workspace_.as<void>();
    params.exec.workspace_bytes = kWorkspaceBytes;
    poison();
  }

  void set_offsets(const std::vector<int32_t>& q, const std::vector<int32_t>& k) {
    offsets_q_.from_host(q.data());
    offsets_k_.from_host(k.data());
    keys_ = {k[1] - k[0], k[2] - k[1]};
    rows_of_first_ = q[1];
  }
  void poison() const {
    out_.fill(0xff);
    lse_.fill(0xff);
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
  }
  bool is_untouched() const {
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
    std::vector<uint16_t> out = constant(0);
    out_.to_host(out.data());
    for (const uint16_t bits : out) {
      if (bits != 0xffff) return false;
    }
    return true;
  }
  void expect_right() const {
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
    std::vector<uint16_t> out = constant(0);
    std::vector<float> lse(kHeads * kRows);
    out_.to_host(out.data());
    lse_.to_host(lse.data());
    for (const uint16_t bits : out) ASSERT_EQ(to_float(Bf16{bits}), kValue);
    const double score = 0.25 * std::sqrt(static_cast<double>(kHeadDim));
    for (int64_t i = 0; i < kHeads * kRows; ++i) {
      const auto keys = static_cast<double>(keys_[i % kRows < rows_of_first_ ? 0 : 1]);
      ASSERT_NEAR(lse[static_cast<size_t>(i)], score + std::log(keys), 1e-4) << i;
    }
  }

  VarlenForwardParams params;

 private:
  static constexpr size_t kTensorBytes = kRows * kHeads * kHeadDim * 2;
  static constexpr size_t kWorkspaceBytes = 1 << 20;
  DeviceBuffer q_{kTensorBytes}, k_{kTensorBytes}, v_{kTensorBytes}, out_{kTensorBytes};
  DeviceBuffer lse_{kHeads * kRows * 4}, offsets_q_{12}, offsets_k_{12}, workspace_{kWorkspaceBytes};
  std::vector<int32_t> keys_;  // of each sequence
  int64_t rows_of_first_ = 0;
};

class Stream {
 public:
  Stream() { TANDEM_CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

void expect_words(const std::string& words) {
  EXPECT_NE(std::string(tandem_last_error()).find(words), std::string::npos) << tandem_last_error();
}

// In a process of its own (as ctest runs it) this is the first call: only prepare has gone before the capture [14].
TEST(Backend, FirstCallInACapture) {
  TANDEM_NEEDS_GPU();
  PackedCall call;
  ASSERT_EQ(tandem_prepare(kDevice), TANDEM_OK) << tandem_last_error();
  const Stream stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  call.params.exec.stream = stream.get();
  TANDEM_CHECK_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  const tandem_status captured = tandem_varlen_forward(&call.params);
  TANDEM_CHECK_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  ASSERT_EQ(captured, TANDEM_OK) << tandem_last_error();
  TANDEM_CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_TRUE(call.is_untouched());
  const std::vector<int32_t> offsets[] = {{0, 60, 200}, {0, 199, 200}, {0, 1, 200}};
  for (const std::vector<int32_t>& k : offsets) {  // other contents
    call.set_offsets({0, 100, 200}, k);
    call.poison();
    TANDEM_CHECK_CUDA(cudaGraphLaunch(executable, stream.get()));
    call.expect_right();
  }
  TANDEM_CHECK_CUDA(cudaGraphExecDestroy(executable));
  TANDEM_CHECK_CUDA(cudaGraphDestroy(graph));
}

TEST(Backend, WithoutPrepare) {
  TANDEM_NEEDS_GPU();
  PackedCall call;
  ASSERT_EQ(tandem_varlen_forward(&call.params), TANDEM_OK) << tandem_last_error();
  call.expect_right();
}

TEST(Backend, Queries) {
  TANDEM_NEEDS_GPU();
  int count = 0;
  TANDEM_CHECK_CUDA(cudaGetDeviceCount(&count));
  int32_t backend = -1;
  EXPECT_EQ(tandem_backend_select(TANDEM_BACKEND_AUTO, kDevice, &backend), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(backend, TANDEM_BACKEND_SM90);
  EXPECT_EQ(tandem_backend_available(TANDEM_BACKEND_SM90, kDevice), TANDEM_OK) << tandem_last_error();
  const std::string description = tandem_backend_description(TANDEM_BACKEND_SM90, kDevice);
  EXPECT_NE(description.find(" SMs, "), std::string::npos) << description;
  EXPECT_EQ(tandem_backend_available(TANDEM_BACKEND_SM90, {TANDEM_CUDA, count}), TANDEM_NO_DEVICE);
  expect_words("CUDA device " + std::to_string(count) + " does not exist");
  EXPECT_EQ(tandem_prepare({TANDEM_CUDA, count}), TANDEM_NO_DEVICE);
}

TEST(Backend, NeedsGradAsksTheBackward) {  // [13]
  TANDEM_NEEDS_GPU();
  PackedCall call;
  call.params.exec.needs_grad = 1;
  VarlenBackwardParams backward;
  backward.exec = call.params.exec;
  backward.q = backward.dq = call.params.q;
  backward.k = backward.dk = call.params.k;
  backward.v = backward.dv = call.params.v;
  backward.out = backward.dout = call.params.out;
  backward.lse = call.params.lse;
  backward.cu_seqlens_q = call.params.cu_seqlens_q;
  backward.cu_seqlens_k = call.params.cu_seqlens_k;
  const tandem_status can = tandem_varlen_backward_check(&backward);
  EXPECT_EQ(tandem_varlen_forward(&call.params), can) << tandem_last_error();
  if (can == TANDEM_OK) return call.expect_right();
  EXPECT_EQ(can, TANDEM_UNSUPPORTED);
  expect_words("exec.needs_grad is 1");
  EXPECT_TRUE(call.is_untouched());
}

TEST(CheckedMode, ReadsWhatTheStreamWroteLast) {  // C90
  TANDEM_NEEDS_GPU();
  PackedCall call;
  call.params.exec.checked = 1;
  const Stream stream;
  call.params.exec.stream = stream.get();
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_OK) << tandem_last_error();
  call.expect_right();
  call.poison();
  const int32_t beyond = kRows + 1;
  TANDEM_CHECK_CUDA(cudaMemcpyAsync(static_cast<int32_t*>(call.params.cu_seqlens_k.data) + 2, &beyond, sizeof beyond,
                                    cudaMemcpyHostToDevice, stream.get()));
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_INVALID_ARGUMENT);
  expect_words("cu_seqlens_k[2] is 201 but k.shape[0] is 200");
  EXPECT_TRUE(call.is_untouched());
}

TEST(CheckedMode, IntervalsAndUsedLengths) {
  TANDEM_NEEDS_GPU();
  PackedCall call;
  call.params.exec.checked = 1;
  const DeviceBuffer used(8), hi(kRows * 4);
  used.from_host(std::vector<int32_t>{130, 71}.data());
  hi.from_host(std::vector<int32_t>(kRows, -3).data());
  call.params.mask.hi = view(hi.as<int32_t>(), {1, kRows});
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_INVALID_ARGUMENT);
  expect_words("mask.hi is -3 at sequence 0, head 0, row 0");
  call.params.seqused_k = view(used.as<int32_t>(), {2});
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_INVALID_ARGUMENT);
  expect_words("seqused_k[1] is 71; allowed are 0 to 70");
  EXPECT_TRUE(call.is_untouched());
}

TEST(CheckedMode, IsRefusedInACapture) {
  TANDEM_NEEDS_GPU();
  PackedCall call;
  call.params.exec.checked = 1;
  const Stream stream;
  cudaGraph_t graph;
  call.params.exec.stream = stream.get();
  TANDEM_CHECK_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_UNSUPPORTED);
  expect_words("captured");
  TANDEM_CHECK_CUDA(cudaStreamEndCapture(stream.get(), &graph));  // the capture is still valid
  TANDEM_CHECK_CUDA(cudaGraphDestroy(graph));
}

// Two parts with equal LSE: the mean, and ln 2 more.
TEST(Merge, ThroughTheCInterface) {
  TANDEM_NEEDS_GPU();
  const DeviceBuffer partial(2 * 4), lse_partial(2 * 4), out(4), lse(4);
  partial.from_host(std::vector<float>{1, 4}.data());
  lse_partial.from_host(std::vector<float>{3, 3}.data());
  MergeParams params;
  params.exec.device = kDevice;
  params.out_partial = view(partial.as<float>(), {2, 1, 1, 1, 1});
  params.lse_partial = view(lse_partial.as<float>(), {2, 1, 1, 1});
  params.out = view(out.as<float>(), {1, 1, 1, 1});
  params.lse = view(lse.as<float>(), {1, 1, 1});
  ASSERT_EQ(tandem_merge(&params), TANDEM_OK) << tandem_last_error();
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
  float merged = 0;
  float merged_lse = 0;
  out.to_host(&merged);
  lse.to_host(&merged_lse);
  EXPECT_NEAR(merged, 2.5, 1e-5);
  EXPECT_NEAR(merged_lse, 3 + std::log(2.0), 1e-5);
  params.out_partial.dtype = params.out.dtype = TANDEM_FP64;
  EXPECT_EQ(tandem_merge_check(&params), TANDEM_UNSUPPORTED);
  expect_words("out_partial.dtype is fp64");
}

TEST(Devices, TheCurrentOneStays) {
  TANDEM_NEEDS_GPU();
  int count = 0;
  TANDEM_CHECK_CUDA(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one GPU";
  TANDEM_CHECK_CUDA(cudaSetDevice(1));
  PackedCall call(1);
  TANDEM_CHECK_CUDA(cudaSetDevice(0));
  EXPECT_EQ(tandem_prepare({TANDEM_CUDA, 1}), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_OK) << tandem_last_error();
  call.params.exec.checked = 1;
  EXPECT_EQ(tandem_varlen_forward(&call.params), TANDEM_OK) << tandem_last_error();
  int current = -1;
  TANDEM_CHECK_CUDA(cudaGetDevice(&current));
  EXPECT_EQ(current, 0);
  TANDEM_CHECK_CUDA(cudaSetDevice(1));
  call.expect_right();
  TANDEM_CHECK_CUDA(cudaSetDevice(0));
}

}  // namespace
}  // namespace tandem::gpu_test
