#include "attention_call.h"

#include <algorithm>
#include <chrono>

#include "exit_codes.h"

namespace tandem::cli {
namespace {

template <class Params>
Params common_params(const AttentionCall& call) {
  Params params = {};
  params.struct_size = sizeof(params);
  params.exec = call.exec;
  params.q = call.q;
  params.k = call.k;
  params.v = call.v;
  params.out = call.out;
  params.lse = call.lse;
  params.sink = call.sink;
  params.seqused_q = call.seqused_q;
  params.seqused_k = call.seqused_k;
  params.mask = call.mask;
  params.softmax_scale = call.softmax_scale;
  params.softcap = call.softcap;
  params.has_softmax_scale = call.has_softmax_scale ? 1 : 0;
  return params;
}

template <class Params>
Params forward_params(const AttentionCall& call) {
  Params params = common_params<Params>(call);
  params.q_scale = call.q_scale;
  params.k_scale = call.k_scale;
  params.v_scale = call.v_scale;
  return params;
}

template <class Params>
Params backward_params(const AttentionCall& call) {
  Params params = common_params<Params>(call);
  params.dout = call.dout;
  params.dlse = call.dlse;
  params.dq = call.dq;
  params.dk = call.dk;
  params.dv = call.dv;
  params.dsink = call.dsink;
  return params;
}

template <class Params>
Params packed(Params params, const AttentionCall& call) {
  params.cu_seqlens_q = call.cu_seqlens_q;
  params.cu_seqlens_k = call.cu_seqlens_k;
  return params;
}

// Calls `use` with the parameter struct of the call's form and the three functions that take it.
template <class Use>
tandem_status with_params(const AttentionCall& call, Direction direction, Use use) {
  if (direction == Direction::kForward) {
    if (!call.packed()) {
      const auto params = forward_params<tandem_forward_params>(call);
      return use(&params, tandem_forward_check, tandem_forward_workspace, tandem_forward);
    }
    const auto params = packed(forward_params<tandem_varlen_forward_params>(call), call);
    return use(&params, tandem_varlen_forward_check, tandem_varlen_forward_workspace, tandem_varlen_forward);
  }
  if (!call.packed()) {
    const auto params = backward_params<tandem_backward_params>(call);
    return use(&params, tandem_backward_check, tandem_backward_workspace, tandem_backward);
  }
  const auto params = packed(backward_params<tandem_varlen_backward_params>(call), call);
  return use(&params, tandem_varlen_backward_check, tandem_varlen_backward_workspace, tandem_varlen_backward);
}

std::vector<tandem_tensor*> inputs_of(AttentionCall& call, Direction direction) {
  std::vector<tandem_tensor*> tensors = {
      &call.q,        &call.k,       &call.v,       &call.sink,         &call.mask.lo,      &call.mask.hi,
      &call.q_scale,  &call.k_scale, &call.v_scale, &call.cu_seqlens_q, &call.cu_seqlens_k, &call.seqused_q,
      &call.seqused_k};
  if (direction == Direction::kBackward) {
    tensors.insert(tensors.end(), {&call.out, &call.lse, &call.dout, &call.dlse});
  }
  return tensors;
}

std::vector<tandem_tensor*> results_of(AttentionCall& call, Direction direction) {
  if (direction == Direction::kForward) return {&call.out, &call.lse};
  return {&call.dq, &call.dk, &call.dv, &call.dsink};
}

uint64_t bytes_of(const tandem_tensor& tensor) {
  const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.ndim);
  return static_cast<uint64_t>(*checked_byte_count(tensor.dtype, shape));
}

}  // namespace

std::vector<int64_t> lse_shape(const std::vector<int64_t>& q_shape) {
  if (q_shape.size() == 4) return {q_shape[0], q_shape[2], q_shape[1]};
  return {q_shape[1], q_shape[0]};
}

std::vector<int64_t> out_shape(const std::vector<int64_t>& q_shape, const std::vector<int64_t>& v_shape) {
  std::vector<int64_t> shape = q_shape;
  shape.back() = v_shape.back();
  return shape;
}

int32_t backend_from_name(const std::string& name) {
  if (name == "auto") return TANDEM_BACKEND_AUTO;
  for (int32_t id = TANDEM_BACKEND_REFERENCE; id <= TANDEM_BACKEND_SM90; ++id) {
    if (name == tandem_backend_name(id)) return id;
  }
  return -1;
}

void require_ok(tandem_status status) {
  if (status == TANDEM_OK) return;
  throw CliError(kLibraryRefused, std::string(tandem_last_error()) + " [" + tandem_status_name(status) + "]");
}

tandem_status check(const AttentionCall& call, Direction direction) {
  return with_params(call, direction, [](auto* params, auto check_call, auto, auto) { return check_call(params); });
}

PreparedCall::PreparedCall(const AttentionCall& call, Direction direction) : call_(call), direction_(direction) {
  uint64_t bytes = 0;
  uint64_t alignment = 1;
  require_ok(with_params(call, direction, [&](auto* params, auto, auto workspace_call, auto) {
    return workspace_call(params, &bytes, &alignment);
  }));
  if (on_gpu()) move_to_gpu();
  if (bytes == 0) return;
  char* const begin = static_cast<char*>(allocate_workspace(bytes + alignment));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  call_.exec.workspace = begin + (alignment - address % alignment) % alignment;
  call_.exec.workspace_bytes = bytes;
}

void PreparedCall::move_to_gpu() {
  const auto move = [&](tandem_tensor* tensor, bool is_result) {
    if (tensor->ndim == 0) return;
    copies_.push_back({tensor->data, GpuBuffer(call_.exec.device.ordinal, bytes_of(*tensor)), is_result});
    copies_.back().gpu.upload(tensor->data);
    tensor->data = copies_.back().gpu.data();
  };
  for (tandem_tensor* tensor : inputs_of(call_, direction_)) move(tensor, false);
  for (tandem_tensor* tensor : results_of(call_, direction_)) move(tensor, true);
}

void* PreparedCall::allocate_workspace(uint64_t bytes) {
  if (on_gpu()) {
    copies_.push_back({nullptr, GpuBuffer(call_.exec.device.ordinal, bytes), false});
    return copies_.back().gpu.data();
  }
  workspace_ = TensorBuffer(TANDEM_E4M3, {static_cast<int64_t>(bytes)});
  return workspace_.data();
}

void PreparedCall::run() const {
  require_ok(with_params(call_, direction_, [](auto* params, auto, auto, auto run_call) { return run_call(params); }));
}

void PreparedCall::wait() const {
  if (on_gpu()) wait_for_gpu(call_.exec.device.ordinal);
}

void PreparedCall::fetch_results() const {
  for (const Copy& copy : copies_) {
    if (copy.is_result) copy.gpu.download(copy.host);
  }
}

std::vector<double> PreparedCall::time(int count) const {
  using Clock = std::chrono::steady_clock;
  if (on_gpu()) {
    return time_on_gpu(call_.exec.device.ordinal, count, [this] { run(); });
  }
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return times;
}

void run_once(const AttentionCall& call, Direction direction) {
  const PreparedCall prepared(call, direction);
  prepared.run();
  prepared.fetch_results();
}

}  // namespace tandem::cli
