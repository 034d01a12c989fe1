// The kernels before and after the backward kernel on the GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "backward_rows_case.h"
#include "cuda_check.h"
#include "sm90/backward/postprocess.h"
#include "sm90/backward/preprocess.h"

namespace tandem::gpu_test {
namespace {

// A case's tensors on the device.
class DeviceRows {
 public:
  explicit DeviceRows(const RowsCase& test)
      : data_(test), dq_(data_.dq_bytes()), dsink_(data_.dsink_bytes()), workspace_(data_.workspace_bytes()) {
    at_ = data_.upload([this](const char*, const void* bytes, size_t size) {
      inputs_.push_back(std::make_unique<DeviceBuffer>(size));
      inputs_.back()->from_host(bytes);
      return inputs_.back()->as<void>();
    });
    at_.dq = dq_.as<void>();
    at_.dsink = dsink_.as<void>();
    at_.workspace = workspace_.as<void>();
    for (const DeviceBuffer* buffer : {&dq_, &dsink_, &workspace_}) buffer->fill(0xff);
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
  }

  Status run_preprocess(cudaStream_t stream) const {
    return sm90::launch_preprocess(sm90::plan_preprocess(problem(), data_.tiles_row()), stream);
  }
  Status run_postprocess(cudaStream_t stream) const {
    return sm90::launch_postprocess(sm90::plan_postprocess(problem(), data_.tiles_row()), stream);
  }

  // Empty, or what was wrong. In between it does the backward kernel's part.
  std::string run() const {
    Status status = run_preprocess(nullptr);
    if (!status.is_ok()) return status.message();
    std::vector<uint8_t> workspace = workspace_on_host();
    std::string fault = data_.fault_of_workspace(workspace);
    if (!fault.empty()) return fault;
    data_.set_sums(workspace);
    workspace_.from_host(workspace.data());
    status = run_postprocess(nullptr);
    if (!status.is_ok()) return status.message();
    return data_.fault_of_results(workspace, dq_on_host(), dsink_on_host());
  }

  std::vector<float> dsink_on_host() const {
    std::vector<float> dsink(data_.dsink_bytes() / sizeof(float));
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
    dsink_.to_host(dsink.data());
    return dsink;
  }

 private:
  AttentionProblem problem() const { return data_.problem(at_); }
  std::vector<uint8_t> workspace_on_host() const {
    std::vector<uint8_t> bytes(data_.workspace_bytes());
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
    workspace_.to_host(bytes.data());
    return bytes;
  }
  std::vector<uint8_t> dq_on_host() const {
    std::vector<uint8_t> bytes(data_.dq_bytes());
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
    dq_.to_host(bytes.data());
    return bytes;
  }

  RowsData data_;
  DeviceBuffer dq_, dsink_, workspace_;
  std::vector<std::unique_ptr<DeviceBuffer>> inputs_;
  RowsPointers at_{};
};

TEST(BackwardRows, CasesOfEveryKind) {
  TANDEM_NEEDS_GPU();
  ASSERT_TRUE(sm90::prepare_preprocess().is_ok());
  ASSERT_TRUE(sm90::prepare_postprocess().is_ok());
  for (const RowsCase& test : rows_cases()) {
    EXPECT_EQ(DeviceRows(test).run(), "")
        << test.name << ", headdim " << test.headdim << ", " << dtype_name(test.dtype);
  }
}

// More m_blocks than threads sum them up; the same bits each time.
TEST(BackwardRows, ManyRows) {
  TANDEM_NEEDS_GPU();
  RowsCase test;
  test.batch = 3;
  test.nheads_q = 2;
  test.seqlen_q = 20000;
  test.seqlen_k = 1;
  test.headdim = test.headdim_v = 128;
  test.sink = test.dlse = true;
  const DeviceRows on_device(test);
  EXPECT_EQ(on_device.run(), "");
  const std::vector<float> first = on_device.dsink_on_host();
  for (int again = 0; again < 5; ++again) {
    ASSERT_TRUE(on_device.run_preprocess(nullptr).is_ok());
    ASSERT_TRUE(on_device.run_postprocess(nullptr).is_ok());
    EXPECT_EQ(on_device.dsink_on_host(), first);
  }
}

// Microseconds a call, of many in a row.
template <typename Run>
double microseconds(const Run& run) {
  constexpr int kCalls = 50;
  cudaEvent_t begin;
  cudaEvent_t end;
  TANDEM_CHECK_CUDA(cudaEventCreate(&begin));
  TANDEM_CHECK_CUDA(cudaEventCreate(&end));
  for (int call = 0; call < 5; ++call) run();
  TANDEM_CHECK_CUDA(cudaEventRecord(begin));
  for (int call = 0; call < kCalls; ++call) run();
  TANDEM_CHECK_CUDA(cudaEventRecord(end));
  TANDEM_CHECK_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  TANDEM_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  TANDEM_CHECK_CUDA(cudaEventDestroy(begin));
  TANDEM_CHECK_CUDA(cudaEventDestroy(end));
  return milliseconds * 1e3 / kCalls;
}

void print_bandwidth(const char* kernel, int64_t headdim, DType dtype, double time, double bytes) {
  std::printf("%s, headdim %lld, %s: %.1f us, %.2f TB/s\n", kernel, static_cast<long long>(headdim), dtype_name(dtype),
              time, bytes / time * 1e-6);
}

// By hand: gpu_backward_rows_test --gtest_also_run_disabled_tests --gtest_filter=*Bandwidth
TEST(BackwardRows, DISABLED_Bandwidth) {
  TANDEM_NEEDS_GPU();
  for (const int64_t headdim : {64, 128}) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      RowsCase test;
      test.batch = 1;
      test.seqlen_q = 16384;
      test.seqlen_k = 1;
      test.nheads_q = 2048 / headdim;
      test.headdim = test.headdim_v = headdim;
      test.dtype = dtype;
      const DeviceRows on_device(test);
      const double elements = 16384.0 * 2048;
      const double before = microseconds([&] { ASSERT_TRUE(on_device.run_preprocess(nullptr).is_ok()); });
      print_bandwidth("preprocess", headdim, dtype, before, elements * (2 + 2 + 4));
      const double after = microseconds([&] { ASSERT_TRUE(on_device.run_postprocess(nullptr).is_ok()); });
      print_bandwidth("postprocess", headdim, dtype, after, elements * (4 + 2));
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_test
