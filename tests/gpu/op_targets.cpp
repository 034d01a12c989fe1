#include "op_targets.h"

#include <cstdlib>

#include "device.h"
#include "device_problem.h"

namespace tandem::gpu_test {
namespace {

struct HeadDims {
  int64_t qk, v;
};
constexpr HeadDims kInstances[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
constexpr HeadDims kInside[] = {{8, 8},     {40, 40},   {72, 72},  {80, 80},  {120, 120},
                                {136, 136}, {200, 200}, {64, 256}, {256, 64}, {136, 72}};

optest::Target target(int32_t dtype, const HeadDims& dims) {
  optest::Target result;
  result.name = std::string(tandem_dtype_name(dtype)) + "_" + std::to_string(dims.qk) + "_" + std::to_string(dims.v);
  result.backend = TANDEM_BACKEND_SM90;
  result.gradients = false;
  result.dtype = dtype;
  result.headdim = dims.qk;
  result.headdim_v = dims.v;
  result.fp32_results = false;
  result.broadcasts = false;
  return result;
}

// Memory of the pool and a stream that does not wait for the default one.
class CudaDevice : public optest::Device {
 public:
  tandem_device id() const override { return {TANDEM_CUDA, 0}; }
  void* stream() const override { return stream_; }

  uint8_t* upload(const uint8_t* bytes, size_t count) override {
    memory_.emplace_back(count + 256);
    uint8_t* const copy = memory_.back().as<uint8_t>() + reinterpret_cast<uintptr_t>(bytes) % 256;
    TANDEM_CHECK_CUDA(cudaMemcpy(copy, bytes, count, cudaMemcpyHostToDevice));
    TANDEM_CHECK_CUDA(cudaStreamSynchronize(nullptr));  // the copy may still be on its way, and stream_ does not wait
    return copy;
  }

  void download(uint8_t* bytes, const uint8_t* source, size_t count) override {
    wait_for(stream_);
    TANDEM_CHECK_CUDA(cudaMemcpy(bytes, source, count, cudaMemcpyDeviceToHost));
  }

 private:
  Stream stream_;
  std::vector<PoolBuffer> memory_;
};

}  // namespace

bool is_quick() {
  const char* variable = std::getenv("TANDEM_GPU_QUICK");
  return variable != nullptr && std::string(variable) == "1";
}

std::vector<optest::Target> instance_targets() {
  std::vector<optest::Target> result;
  for (const HeadDims& dims : kInstances) result.push_back(target(TANDEM_BF16, dims));
  return result;
}

}  // namespace tandem::gpu_test

namespace tandem::optest {

std::unique_ptr<Device> open_device(int32_t backend) {
  if (backend != TANDEM_BACKEND_SM90) return nullptr;
  return std::make_unique<gpu_test::CudaDevice>();
}

std::vector<Target> targets() {
  std::vector<Target> result = gpu_test::instance_targets();
  if (gpu_test::is_quick()) return result;
  for (const gpu_test::HeadDims& dims : gpu_test::kInstances) result.push_back(gpu_test::target(TANDEM_FP16, dims));
  for (const gpu_test::HeadDims& dims : gpu_test::kInside) {
    result.push_back(gpu_test::target(TANDEM_BF16, dims));
    result.push_back(gpu_test::target(TANDEM_FP16, dims));
  }
  return result;
}

}  // namespace tandem::optest
