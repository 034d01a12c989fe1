#include "op_targets.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "device.h"
#include "device_problem.h"

namespace tandem::gpu_test {
namespace {

struct HeadDims {
  int64_t qk, v;
};
// In the order in which a problem looks for the first that holds its head dims.
constexpr HeadDims kInstances[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
constexpr HeadDims kInside[] = {{8, 8},     {40, 40},   {72, 72},  {80, 80},  {120, 120},
                                {136, 136}, {200, 200}, {64, 256}, {256, 64}, {136, 72}};

// The same of e4m3, whose head dims are multiples of 16.
constexpr HeadDims kFp8Instances[] = {{64, 64}, {128, 128}, {192, 192}, {256, 256}};
constexpr HeadDims kFp8Inside[] = {{16, 16}, {48, 48}, {96, 96}, {112, 112}, {64, 128}, {144, 144}, {256, 80}};

// The instances of the backward kernel whose refusal is a fault.
constexpr const char* kShippedBackward = "all";

std::string instance_of(const optest::Problem& problem) {
  for (const HeadDims& dims : kInstances) {
    if (problem.headdim > dims.qk || problem.headdim_v > dims.v) continue;
    const std::string qk = std::to_string(dims.qk);
    return dims.qk == dims.v ? qk : qk + "/" + std::to_string(dims.v);
  }
  return "none";
}

bool is_listed(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');) {
    if (one == word) return true;
  }
  return false;
}

// For check calls: without memory.
tandem_tensor contiguous_tensor(const optest::Shape& shape, int32_t dtype) {
  tandem_tensor result = {};
  result.dtype = dtype;
  result.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    result.shape[axis] = shape[axis];
    result.stride[axis] = stride;
    stride *= shape[axis];
  }
  return result;
}

template <typename Params>
std::string refusal_of(Params params, const optest::Problem& problem, bool deterministic,
                       tandem_status (*check)(const Params*)) {
  params.struct_size = sizeof params;
  params.exec.device = {TANDEM_CUDA, 0};
  params.exec.backend = TANDEM_BACKEND_SM90;
  params.exec.deterministic = deterministic;
  params.q = params.dq = contiguous_tensor(problem.q_shape(), problem.dtype);
  params.k = params.dk = contiguous_tensor(problem.k_shape(), problem.dtype);
  params.v = params.dv = contiguous_tensor(problem.v_shape(), problem.dtype);
  params.out = params.dout = contiguous_tensor(problem.out_shape(), problem.out_dtype);
  params.lse = contiguous_tensor(problem.lse_shape(), TANDEM_FP32);
  if (!problem.sink.empty()) params.sink = params.dsink = contiguous_tensor({problem.nheads_q}, TANDEM_FP32);
  params.mask.causal = problem.causal;
  params.mask.top_left = problem.top_left;
  params.mask.has_window = problem.has_window;
  params.mask.window_left = problem.has_window ? problem.window_left : -1;
  params.mask.window_right = problem.has_window ? problem.window_right : -1;
  params.mask.attention_chunk = problem.attention_chunk;
  params.softcap = problem.softcap;
  return check(&params) == TANDEM_OK ? "" : tandem_last_error();
}

optest::Target plain_target(int32_t dtype, const HeadDims& dims) {
  optest::Target result;
  result.name = std::string(tandem_dtype_name(dtype)) + "_" + std::to_string(dims.qk) + "_" + std::to_string(dims.v);
  result.backend = TANDEM_BACKEND_SM90;
  result.dtype = dtype;
  result.headdim = dims.qk;
  result.headdim_v = dims.v;
  result.fp32_results = false;
  result.broadcasts = false;
  return result;
}

optest::Target target(int32_t dtype, const HeadDims& dims) {
  optest::Target result = plain_target(dtype, dims);
  const optest::Problem problem = fitted(optest::dense_problem(1, 64, 64, 1, 1, 1), result);
  result.gradients = has_backward(problem);
  result.deterministic = backward_refusal(problem, true).empty() || backward_is_required(problem, true);
  return result;
}

// V as it is, and as V^T in slots.
template <size_t kCount>
void add_fp8_targets(const HeadDims (&all)[kCount], std::vector<optest::Target>& targets) {
  for (const HeadDims& dims : all) {
    for (const bool in_slots : {false, true}) {
      optest::Target target = plain_target(TANDEM_E4M3, dims);
      target.gradients = false;
      target.v_in_slots = in_slots;
      if (in_slots) target.name += "_slots";
      if (fp8_is_required() || fp8_refusal(target).empty()) targets.push_back(target);
    }
  }
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

bool is_forward_only() {
  const char* variable = std::getenv("TANDEM_FORWARD_ONLY");
  return variable != nullptr && std::string(variable) == "1";
}

std::string backward_refusal(const optest::Problem& problem, bool deterministic) {
  if (!problem.packed) return refusal_of(tandem_backward_params{}, problem, deterministic, tandem_backward_check);
  tandem_varlen_backward_params params = {};
  params.cu_seqlens_q.dtype = params.cu_seqlens_k.dtype = TANDEM_INT32;
  params.cu_seqlens_q.ndim = params.cu_seqlens_k.ndim = 1;
  params.cu_seqlens_q.shape[0] = params.cu_seqlens_k.shape[0] = problem.batch + 1;
  params.cu_seqlens_q.stride[0] = params.cu_seqlens_k.stride[0] = 1;
  return refusal_of(params, problem, deterministic, tandem_varlen_backward_check);
}

std::string backward_refusal(const optest::Target& target, bool deterministic) {
  return backward_refusal(fitted(optest::dense_problem(1, 64, 64, 1, 1, 1), target), deterministic);
}

bool backward_is_required(const optest::Problem& problem, bool deterministic) {
  if (is_forward_only() || problem.dtype == TANDEM_E4M3) return false;
  const char* variable = std::getenv("TANDEM_REQUIRE_BACKWARD");
  const std::string list = variable != nullptr ? variable : kShippedBackward;
  const bool of_instance = is_listed(list, "all") || is_listed(list, instance_of(problem));
  return of_instance && (!deterministic || is_listed(list, "deterministic"));
}

bool has_backward(const optest::Problem& problem) {
  return !is_forward_only() && (backward_is_required(problem) || backward_refusal(problem).empty());
}

bool fp8_is_required() {
  const char* variable = std::getenv("TANDEM_REQUIRE_FP8");
  return variable != nullptr && std::string(variable) == "1";
}

std::string fp8_refusal(const optest::Target& target) {
  const optest::Problem problem = fitted(optest::dense_problem(1, 64, 64, 1, 1, 1), target);
  tandem_forward_params params = {};
  params.struct_size = sizeof params;
  params.exec.device = {TANDEM_CUDA, 0};
  params.exec.backend = TANDEM_BACKEND_SM90;
  params.q = contiguous_tensor(problem.q_shape(), problem.dtype);
  params.k = contiguous_tensor(problem.k_shape(), problem.dtype);
  params.v = contiguous_tensor(problem.stored_v_shape(), problem.dtype);
  params.out = contiguous_tensor(problem.out_shape(), problem.out_dtype);
  params.v_transposed = problem.v_transposed;
  return tandem_forward_check(&params) == TANDEM_OK ? "" : tandem_last_error();
}

std::vector<optest::Target> fp8_targets() {
  std::vector<optest::Target> result;
  add_fp8_targets(kFp8Instances, result);
  return result;
}

void list_backward_targets() {
  for (const optest::Target& target : optest::targets()) {
    const std::string refusal = backward_refusal(target), refusal_of_mode = backward_refusal(target, true);
    std::printf("%s: %s%s\n", target.name.c_str(), refusal.empty() ? "gradients" : refusal.c_str(),
                !refusal.empty()          ? ""
                : refusal_of_mode.empty() ? ", also deterministic"
                                          : (", but not deterministic: " + refusal_of_mode).c_str());
  }
}

std::vector<optest::Target> instance_targets() {
  std::vector<optest::Target> result;
  for (const HeadDims& dims : kInstances) result.push_back(target(TANDEM_BF16, dims));
  for (const optest::Target& target : fp8_targets()) result.push_back(target);
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
  gpu_test::add_fp8_targets(gpu_test::kFp8Inside, result);
  return result;
}

std::vector<Target> quantize_targets() {
  Target target;
  target.name = "sm90";
  target.backend = TANDEM_BACKEND_SM90;
  target.fp32_inputs = false;
  return {target};
}

}  // namespace tandem::optest
