#include "runner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace tandem::optest {
namespace {

constexpr size_t kGuardBytes = 256;

HostTensor int32_tensor(Shape shape, const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  HostTensor tensor(std::move(shape), TANDEM_INT32);
  for (size_t n = 0; n < values.size(); ++n) tensor.set(static_cast<int64_t>(n), values[n]);
  return tensor;
}

HostTensor vector_of(const std::vector<int32_t>& values) {
  return int32_tensor({static_cast<int64_t>(values.size())}, values);
}

HostTensor interval_tensor(const Problem& problem, const std::optional<Intervals>& intervals) {
  if (!intervals) return {};
  const int64_t heads = intervals->per_head ? problem.nheads_q : 1;
  const Shape shape = problem.packed ? Shape{heads, problem.total_q}
                                     : Shape{intervals->per_batch ? problem.batch : 1, heads, problem.seqlen_q};
  HostTensor tensor(shape, TANDEM_INT32);
  for (size_t n = 0; n < intervals->values.size(); ++n) tensor.set(static_cast<int64_t>(n), intervals->values[n]);
  return tensor;
}

// Writes the values that are not poison last, so that they win where a layout makes elements overlap.
HostTensor filled(Shape shape, int32_t dtype, const Layout& layout, std::vector<double>& values) {
  HostTensor tensor(std::move(shape), dtype, layout);
  for (size_t n = 0; n < values.size(); ++n) {
    if (!(values[n] - values[n] == 0)) tensor.set(static_cast<int64_t>(n), values[n]);
  }
  for (size_t n = 0; n < values.size(); ++n) {
    if (values[n] - values[n] == 0) tensor.set(static_cast<int64_t>(n), values[n]);
  }
  values = tensor.values();
  return tensor;
}

// V^T in slots; what has no slot is lost.
HostTensor transposed_v(const Problem& problem, const std::vector<double>& values) {
  HostTensor tensor(problem.stored_v_shape(), problem.dtype, problem.v_layout);
  for (size_t n = 0; n < values.size(); ++n) {
    const int64_t index = problem.stored_v_index(static_cast<int64_t>(n));
    if (index >= 0) tensor.set(index, values[n]);
  }
  return tensor;
}

HostTensor scale_tensor(const std::optional<ScaleSet>& scales) {
  if (!scales) return {};
  const Shape shape = scales->ndim == 1   ? Shape{1}
                      : scales->ndim == 2 ? Shape{scales->batch, scales->heads}
                                          : Shape{scales->batch, scales->heads, scales->blocks};
  HostTensor tensor(shape, TANDEM_FP32);
  for (size_t n = 0; n < scales->values.size(); ++n) tensor.set(static_cast<int64_t>(n), scales->values[n]);
  return tensor;
}

std::vector<bool> rows_of_sequences(const Problem& problem) {
  std::vector<bool> inside(static_cast<size_t>(problem.rows_q()));
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = problem.span(b);
    for (int64_t i = 0; i < span.q_len; ++i) inside[static_cast<size_t>(span.q_begin + i)] = true;
  }
  return inside;
}

tandem_status call_workspace(const tandem_forward_params& p, uint64_t* b, uint64_t* a) {
  return tandem_forward_workspace(&p, b, a);
}
tandem_status call_workspace(const tandem_backward_params& p, uint64_t* b, uint64_t* a) {
  return tandem_backward_workspace(&p, b, a);
}
tandem_status call_workspace(const tandem_varlen_forward_params& p, uint64_t* b, uint64_t* a) {
  return tandem_varlen_forward_workspace(&p, b, a);
}
tandem_status call_workspace(const tandem_varlen_backward_params& p, uint64_t* b, uint64_t* a) {
  return tandem_varlen_backward_workspace(&p, b, a);
}
tandem_status call_run(const tandem_forward_params& p) {
  return tandem_forward(&p);
}
tandem_status call_run(const tandem_backward_params& p) {
  return tandem_backward(&p);
}
tandem_status call_run(const tandem_varlen_forward_params& p) {
  return tandem_varlen_forward(&p);
}
tandem_status call_run(const tandem_varlen_backward_params& p) {
  return tandem_varlen_backward(&p);
}

}  // namespace

GuardedBytes::GuardedBytes(uint64_t bytes, uint64_t alignment)
    : storage_(bytes + alignment + 2 * kGuardBytes, 0xff), bytes_(bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(storage_.data()) + kGuardBytes;
  begin_ = kGuardBytes + (alignment - first % alignment) % alignment;
}

bool GuardedBytes::guards_intact() const {
  const auto intact = [](uint8_t byte) { return byte == 0xff; };
  const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(begin_);
  return std::all_of(storage_.begin(), begin, intact) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), intact);
}

Runner::Runner(const Problem& problem, const Inputs& inputs, int32_t backend)
    : problem_(problem), backend_(backend), inputs_(inputs) {
  q_ = filled(problem.q_shape(), problem.dtype, problem.q_layout, inputs_.q);
  k_ = filled(problem.k_shape(), problem.dtype, problem.k_layout, inputs_.k);
  v_ = problem.v_transposed ? transposed_v(problem, inputs_.v)
                            : filled(problem.v_shape(), problem.dtype, problem.v_layout, inputs_.v);
  q_scale_ = scale_tensor(problem.q_scale);
  k_scale_ = scale_tensor(problem.k_scale);
  v_scale_ = scale_tensor(problem.v_scale);
  dout_ = filled(problem.out_shape(), problem.out_dtype, problem.dout_layout, inputs_.dout);
  if (problem.with_dlse) dlse_ = filled(problem.lse_shape(), problem.lse_dtype, problem.dlse_layout, inputs_.dlse);
  if (!problem.sink.empty()) {
    std::vector<double> sink = problem.sink;
    sink_ = filled({problem.nheads_q}, problem.lse_dtype, {}, sink);
  }
  lo_ = interval_tensor(problem, problem.lo);
  hi_ = interval_tensor(problem, problem.hi);
  if (problem.packed) {
    cu_seqlens_q_ = vector_of(problem.cu_seqlens_q);
    cu_seqlens_k_ = vector_of(problem.cu_seqlens_k);
  }
  seqused_q_ = vector_of(problem.seqused_q);
  seqused_k_ = vector_of(problem.seqused_k);
}

template <typename Params>
void Runner::fill_common(Params& params, CallMemory& memory) {
  params.struct_size = sizeof params;
  memory.set_place(params.exec);
  params.exec.backend = backend_;
  params.exec.num_threads = problem_.num_threads;
  params.exec.deterministic = problem_.deterministic;
  params.exec.checked = problem_.checked;
  params.q = memory.view(q_);
  params.k = memory.view(k_);
  params.v = memory.view(v_);
  params.out = memory.view(out_);
  params.lse = memory.view(lse_);
  params.sink = memory.view(sink_);
  params.seqused_q = memory.view(seqused_q_);
  params.seqused_k = memory.view(seqused_k_);
  params.mask.causal = problem_.causal;
  params.mask.top_left = problem_.top_left;
  params.mask.has_window = problem_.has_window;
  params.mask.window_left = problem_.has_window ? problem_.window_left : -1;
  params.mask.window_right = problem_.has_window ? problem_.window_right : -1;
  params.mask.attention_chunk = problem_.attention_chunk;
  params.mask.lo = memory.view(lo_);
  params.mask.hi = memory.view(hi_);
  params.softmax_scale = problem_.softmax_scale.value_or(0);
  params.has_softmax_scale = problem_.softmax_scale.has_value();
  params.softcap = problem_.softcap;
  if constexpr (std::is_same_v<Params, tandem_backward_params> ||
                std::is_same_v<Params, tandem_varlen_backward_params>) {
    params.dout = memory.view(dout_);
    params.dlse = memory.view(dlse_);
    params.dq = memory.view(dq_);
    params.dk = memory.view(dk_);
    params.dv = memory.view(dv_);
    params.dsink = memory.view(dsink_);
  } else {
    params.q_scale = memory.view(q_scale_);
    params.k_scale = memory.view(k_scale_);
    params.v_scale = memory.view(v_scale_);
    params.v_transposed = problem_.v_transposed;
  }
  if constexpr (std::is_same_v<Params, tandem_varlen_forward_params> ||
                std::is_same_v<Params, tandem_varlen_backward_params>) {
    params.cu_seqlens_q = memory.view(cu_seqlens_q_);
    params.cu_seqlens_k = memory.view(cu_seqlens_k_);
  }
}

// With the workspace that the call asks for.
template <typename Params>
tandem_status Runner::call() {
  CallMemory memory(backend_);
  Params params = {};
  fill_common(params, memory);
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  tandem_status status = call_workspace(params, &bytes, &alignment);
  if (status == TANDEM_OK) {
    workspace_ = GuardedBytes(bytes, alignment);
    params.exec.workspace = bytes > 0 ? memory.address(workspace_.storage()) + workspace_.offset() : nullptr;
    params.exec.workspace_bytes = bytes;
    status = call_run(params);
  }
  memory.bring_home();
  return status;
}

void Runner::watch(std::vector<HostTensor*> inputs, std::vector<HostTensor*> outputs) {
  watched_inputs_ = {&sink_, &lo_, &hi_, &cu_seqlens_q_, &cu_seqlens_k_, &seqused_q_, &seqused_k_,
                     &q_,    &k_,  &v_,  &q_scale_,      &k_scale_,      &v_scale_};
  watched_inputs_.insert(watched_inputs_.end(), inputs.begin(), inputs.end());
  watched_outputs_ = std::move(outputs);
  for (HostTensor* tensor : watched_inputs_) tensor->snapshot();
  for (HostTensor* tensor : watched_outputs_) tensor->snapshot();
}

void Runner::inspect() {
  for (HostTensor* tensor : watched_inputs_) {
    if (damage_.empty()) damage_ = tensor->changes_anywhere();
  }
  for (HostTensor* tensor : watched_outputs_) {
    if (damage_.empty() && tensor->present()) damage_ = tensor->changes_outside_view();
  }
  if (damage_.empty() && !workspace_.guards_intact()) damage_ = "bytes around the workspace were written";
}

tandem_status Runner::forward() {
  out_ = HostTensor(problem_.out_shape(), problem_.out_dtype, problem_.out_layout);
  lse_ = problem_.with_lse ? HostTensor(problem_.lse_shape(), problem_.lse_dtype, problem_.lse_layout) : HostTensor();
  watch({}, {&out_, &lse_});
  const tandem_status status = problem_.packed ? call<tandem_varlen_forward_params>() : call<tandem_forward_params>();
  inspect();
  if (status == TANDEM_OK) {
    results_.out = out_.values();
    results_.lse = lse_.values();
  }
  return status;
}

void Runner::set_forward(const std::vector<double>& out, const std::vector<double>& lse) {
  results_.out = out;
  results_.lse = lse;
}

void Runner::prepare_backward_inputs() {
  out_ = HostTensor(problem_.out_shape(), problem_.out_dtype, problem_.out_layout);
  lse_ = HostTensor(problem_.lse_shape(), problem_.lse_dtype, problem_.lse_layout);
  const std::vector<bool> inside = rows_of_sequences(problem_);
  const int64_t width = problem_.nheads_q * problem_.headdim_v;
  for (size_t n = 0; n < results_.out.size(); ++n) {
    if (inside[n / static_cast<size_t>(width)]) out_.set(static_cast<int64_t>(n), results_.out[n]);
  }
  for (int64_t b = 0; b < problem_.batch; ++b) {
    for (int64_t h = 0; h < problem_.nheads_q; ++h) {
      for (int64_t i = 0; i < problem_.span(b).q_len; ++i) {
        const int64_t n = problem_.lse_index(b, h, i);
        lse_.set(n, results_.lse[static_cast<size_t>(n)]);
      }
    }
  }
}

tandem_status Runner::backward() {
  prepare_backward_inputs();
  dq_ = HostTensor(problem_.q_shape(), problem_.dtype, problem_.gradient_layout);
  dk_ = HostTensor(problem_.k_shape(), problem_.dtype, problem_.gradient_layout);
  dv_ = HostTensor(problem_.v_shape(), problem_.dtype, problem_.gradient_layout);
  dsink_ = problem_.sink.empty() ? HostTensor() : HostTensor({problem_.nheads_q}, problem_.lse_dtype);
  watch({&out_, &lse_, &dout_, &dlse_}, {&dq_, &dk_, &dv_, &dsink_});
  const tandem_status status = problem_.packed ? call<tandem_varlen_backward_params>() : call<tandem_backward_params>();
  inspect();
  if (status == TANDEM_OK) {
    results_.dq = dq_.values();
    results_.dk = dk_.values();
    results_.dv = dv_.values();
    results_.dsink = dsink_.values();
  }
  return status;
}

namespace {

void require(tandem_status status, const Runner& runner) {
  if (status != TANDEM_OK) {
    throw std::runtime_error(std::string(tandem_status_name(status)) + ": " + tandem_last_error());
  }
  if (!runner.damage().empty()) throw std::runtime_error(runner.damage());
}

}  // namespace

Results run_forward(const Problem& problem, const Inputs& inputs, int32_t backend) {
  Runner runner(problem, inputs, backend);
  require(runner.forward(), runner);
  return runner.results();
}

Results run_both(const Problem& problem, const Inputs& inputs, int32_t backend) {
  Problem with_lse = problem;
  with_lse.with_lse = true;
  Runner runner(with_lse, inputs, backend);
  require(runner.forward(), runner);
  require(runner.backward(), runner);
  return runner.results();
}

Problem in_double(const Problem& problem) {
  Problem copy = problem;
  copy.dtype = copy.out_dtype = copy.lse_dtype = TANDEM_FP64;
  copy.q_layout = copy.k_layout = copy.v_layout = copy.out_layout = copy.dout_layout = {};
  copy.lse_layout = copy.dlse_layout = copy.gradient_layout = {};
  copy.q_scale = copy.k_scale = copy.v_scale = {};
  copy.v_transposed = false;
  copy.num_threads = 0;
  return copy;
}

}  // namespace tandem::optest
