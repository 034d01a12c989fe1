#include "device_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <type_traits>

#include "float_types.h"
#include "oracle.h"

namespace tandem::gpu_test {
namespace {

constexpr int64_t kGuardRows = 3;
constexpr int64_t kUnusedSlots = 32;  // after those of each line of V^T

tandem_tensor scale_tensor(const std::optional<optest::ScaleSet>& scales, const PoolBuffer& values) {
  tandem_tensor result = {};
  if (!scales) return result;
  const int64_t shape[] = {scales->ndim == 1 ? 1 : scales->batch, scales->heads, scales->blocks};
  result.data = values.as<void>();
  result.dtype = TANDEM_FP32;
  result.ndim = scales->ndim;
  int64_t stride = 1;
  for (int axis = result.ndim; axis-- > 0;) {
    result.shape[axis] = shape[axis];
    result.stride[axis] = stride;
    stride *= shape[axis];
  }
  return result;
}

ScaleView scale_view(const std::optional<optest::ScaleSet>& scales, const PoolBuffer& values, int64_t nheads) {
  ScaleView view;
  if (!scales) return view;
  view.values = values.as<float>();
  if (scales->ndim == 1) return view;
  view.batch_stride = scales->heads * scales->blocks;
  view.head_stride = scales->blocks;
  view.heads_per_scale = nheads / scales->heads;
  view.blocks = scales->blocks;
  return view;
}

Placement placed(int64_t batch, int64_t rows, int64_t heads, int64_t columns, bool head_major) {
  Placement place;
  place.batch = batch;
  place.rows = rows;
  place.heads = heads;
  place.columns = columns;
  place.row_stride = head_major ? columns : heads * columns;
  place.head_stride = head_major ? (rows + kGuardRows) * columns : columns;
  place.batch_stride = (rows + kGuardRows) * heads * columns;
  place.first = kGuardRows * heads * columns;
  place.elements = place.first + batch * place.batch_stride;
  return place;
}

tandem_tensor int32_vector(const PoolBuffer& buffer) {
  tandem_tensor tensor = {};
  if (buffer.bytes() == 0) return tensor;
  tensor.data = buffer.as<void>();
  tensor.dtype = TANDEM_INT32;
  tensor.ndim = 1;
  tensor.shape[0] = static_cast<int64_t>(buffer.bytes() / sizeof(int32_t));
  tensor.stride[0] = 1;
  return tensor;
}

// (batch or 1, heads or 1, rows), packed (heads or 1, rows)
IntervalView interval_view(const optest::Problem& problem, const optest::Intervals& intervals,
                           const PoolBuffer& values) {
  const int64_t rows = problem.packed ? problem.total_q : problem.seqlen_q;
  const int64_t heads = intervals.per_head ? problem.nheads_q : 1;
  IntervalView view;
  view.values = values.as<int32_t>();
  view.head_stride = intervals.per_head ? rows : 0;
  view.batch_stride = !problem.packed && intervals.per_batch ? heads * rows : 0;
  return view;
}

tandem_tensor interval_tensor(const optest::Problem& problem, const std::optional<optest::Intervals>& intervals,
                              const PoolBuffer& values) {
  tandem_tensor tensor = {};
  if (!intervals) return tensor;
  const int64_t heads = intervals->per_head ? problem.nheads_q : 1;
  std::vector<int64_t> shape = {heads, problem.total_q};
  if (!problem.packed) shape = {intervals->per_batch ? problem.batch : 1, heads, problem.seqlen_q};
  tensor.data = values.as<void>();
  tensor.dtype = TANDEM_INT32;
  tensor.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = stride;
    stride *= shape[axis];
  }
  return tensor;
}

}  // namespace

DeviceProblem::DeviceProblem(const optest::Problem& problem, const Fill& fill, bool head_major)
    : problem_(problem), fill_(fill) {
  const int64_t entries = problem.packed ? 1 : problem.batch;
  const int64_t rows_q = problem.packed ? problem.total_q : problem.seqlen_q;
  const int64_t rows_k = problem.packed ? problem.total_k : problem.seqlen_k;
  view_.q_at = placed(entries, rows_q, problem.nheads_q, problem.headdim, head_major);
  view_.k_at = placed(entries, rows_k, problem.nheads_k, problem.headdim, head_major);
  view_.v_at = placed(entries, rows_k, problem.nheads_k, problem.headdim_v, head_major);
  view_.out_at = placed(entries, rows_q, problem.nheads_q, problem.headdim_v, head_major);
  const int64_t bytes = optest::element_bytes(problem.dtype);
  q_ = PoolBuffer(static_cast<size_t>(view_.q_at.elements * bytes));
  k_ = PoolBuffer(static_cast<size_t>(view_.k_at.elements * bytes));
  v_ = PoolBuffer(static_cast<size_t>(view_.v_at.elements * bytes));
  if (problem.v_transposed) v_slots_ = PoolBuffer(static_cast<size_t>(slot_lines() * slot_stride()));
  const size_t out_bytes = problem.out_dtype == TANDEM_FP32 ? 4 : 2;
  out_ = PoolBuffer(static_cast<size_t>(view_.out_at.elements) * out_bytes);
  const size_t lse_count = static_cast<size_t>(entries * rows_q * problem.nheads_q);
  if (problem.with_lse) lse_ = GuardedBuffer(lse_count * sizeof(float));
  view_.q = q_.as<void>();
  view_.k = k_.as<void>();
  view_.v = v_.as<void>();
  view_.out = out_.as<void>();
  view_.lse = lse_.as<float>();
  set_problem(problem);
  fill_all();
  const auto scratch_for = [&](auto params, auto ask) {
    fill_params(params, nullptr);
    return make_workspace(params, ask);
  };
  try {
    workspace_ = problem.packed ? scratch_for(tandem_varlen_forward_params{}, tandem_varlen_forward_workspace)
                                : scratch_for(tandem_forward_params{}, tandem_forward_workspace);
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(error.what()) + "; " + text());
  }
  poison_results();
}

// What the call reads is written where the earlier values were, if there were any: a graph has its address.
void DeviceProblem::set_problem(const optest::Problem& problem) {
  const auto update = [](PoolBuffer& buffer, const auto& values) {
    const size_t bytes = values.size() * sizeof(values[0]);
    if (buffer.bytes() != bytes) buffer = PoolBuffer(bytes);
    buffer.from_host(values.data());
  };
  problem_ = problem;
  update(cu_seqlens_q_, problem.cu_seqlens_q);
  update(cu_seqlens_k_, problem.cu_seqlens_k);
  update(seqused_q_, problem.seqused_q);
  update(seqused_k_, problem.seqused_k);
  if (problem.lo) update(lo_, problem.lo->values);
  if (problem.hi) update(hi_, problem.hi->values);
  std::vector<SequenceRange> ranges;
  view_.longest_k = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const optest::Span span = problem.span(b);
    const int64_t q_begin = problem.packed ? span.q_begin : 0;
    const int64_t k_begin = problem.packed ? span.k_begin : 0;
    ranges.push_back({q_begin, span.q_len, k_begin, span.k_len});
    view_.longest_k = std::max(view_.longest_k, span.k_len);
  }
  update(sequences_, ranges);
  const std::vector<float> sink(problem.sink.begin(), problem.sink.end());
  update(sink_, sink);
  const auto update_scales = [&](PoolBuffer& buffer, const std::optional<optest::ScaleSet>& scales, int64_t nheads) {
    const std::vector<double> given = scales ? scales->values : std::vector<double>();
    update(buffer, std::vector<float>(given.begin(), given.end()));
    return scale_view(scales, buffer, nheads);
  };
  view_.q_scale = update_scales(q_scale_, problem.q_scale, problem.nheads_q);
  view_.k_scale = update_scales(k_scale_, problem.k_scale, problem.nheads_k);
  view_.v_scale = update_scales(v_scale_, problem.v_scale, problem.nheads_k);

  view_.packed = problem.packed;
  view_.batch = problem.batch;
  view_.nheads_q = problem.nheads_q;
  view_.nheads_k = problem.nheads_k;
  view_.headdim = problem.headdim;
  view_.headdim_v = problem.headdim_v;
  view_.dtype = problem.dtype;
  view_.out_dtype = problem.out_dtype;
  view_.sequences = sequences_.as<SequenceRange>();
  view_.causal = problem.causal;
  view_.top_left = problem.top_left;
  view_.window_left = problem.has_window ? problem.window_left : -1;
  view_.window_right = problem.has_window ? problem.window_right : -1;
  view_.attention_chunk = problem.attention_chunk;
  view_.lo = problem.lo ? interval_view(problem, *problem.lo, lo_) : IntervalView{};
  view_.hi = problem.hi ? interval_view(problem, *problem.hi, hi_) : IntervalView{};
  view_.sink = sink.empty() ? nullptr : sink_.as<float>();
  view_.scale = problem.scale();
  view_.softcap = problem.softcap;
}

void DeviceProblem::change(const optest::Problem& problem, const Fill& fill) {
  fill_ = fill;
  set_problem(problem);
  fill_all();
  poison_results();
}

void DeviceProblem::fill_all() const {
  fill_inputs(view_, fill_);
  if (!problem_.v_transposed) return;
  v_slots_.fill(0x7f);  // NaN
  transpose_v(view_, v_slots_.as<uint8_t>(), slot_stride());
}

int64_t DeviceProblem::slot_lines() const {
  return (problem_.packed ? 1 : problem_.batch) * problem_.nheads_k * problem_.headdim_v;
}
int64_t DeviceProblem::slot_stride() const {
  return problem_.stored_v_shape().back() + kUnusedSlots;
}

tandem_tensor DeviceProblem::v_tensor() const {
  if (!problem_.v_transposed) return tensor(view_.v, view_.v_at, problem_.dtype);
  tandem_tensor result = {};
  result.data = v_slots_.as<void>();
  result.dtype = problem_.dtype;
  const optest::Shape shape = problem_.stored_v_shape();
  result.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    result.shape[axis] = shape[axis];
    result.stride[axis] = stride;
    stride *= axis + 1 == shape.size() ? slot_stride() : shape[axis];
  }
  return result;
}

void DeviceProblem::poison_results() const {
  out_.fill(0xff);
  lse_.fill(0xff);
  workspace_.fill(0xff);
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

tandem_tensor DeviceProblem::tensor(const void* data, const Placement& place, int32_t dtype) const {
  tandem_tensor result = {};
  const int64_t bytes = optest::element_bytes(dtype);
  result.data = const_cast<char*>(static_cast<const char*>(data)) + place.first * bytes;
  result.dtype = dtype;
  std::vector<int64_t> shape = {place.rows, place.heads, place.columns};
  std::vector<int64_t> stride = {place.row_stride, place.head_stride, 1};
  if (!problem_.packed) {
    shape.insert(shape.begin(), place.batch);
    stride.insert(stride.begin(), place.batch_stride);
  }
  result.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), result.shape);
  std::copy(stride.begin(), stride.end(), result.stride);
  return result;
}

tandem_tensor DeviceProblem::lse_tensor(float* lse) const {
  tandem_tensor result = {};
  if (lse == nullptr) return result;
  const optest::Shape shape = problem_.lse_shape();
  result.data = lse;
  result.dtype = TANDEM_FP32;
  result.ndim = static_cast<int32_t>(shape.size());
  int64_t stride_of_axis = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    result.shape[axis] = shape[axis];
    result.stride[axis] = stride_of_axis;
    stride_of_axis *= shape[axis];
  }
  return result;
}

tandem_tensor DeviceProblem::sink_tensor(float* sink) const {
  tandem_tensor result = {};
  if (sink == nullptr) return result;
  result.data = sink;
  result.dtype = TANDEM_FP32;
  result.ndim = 1;
  result.shape[0] = problem_.nheads_q;
  result.stride[0] = 1;
  return result;
}

template <typename Params>
void DeviceProblem::fill_params(Params& params, cudaStream_t stream) const {
  const optest::Problem& p = problem_;
  params.struct_size = sizeof params;
  params.exec.device = {TANDEM_CUDA, 0};
  params.exec.stream = stream;
  params.exec.backend = TANDEM_BACKEND_SM90;
  params.exec.deterministic = p.deterministic;
  params.q = tensor(view_.q, view_.q_at, p.dtype);
  params.k = tensor(view_.k, view_.k_at, p.dtype);
  params.v = v_tensor();
  params.out = tensor(view_.out, view_.out_at, p.out_dtype);
  params.lse = lse_tensor(view_.lse);
  params.sink = sink_tensor(sink_.as<float>());
  params.seqused_q = int32_vector(seqused_q_);
  params.seqused_k = int32_vector(seqused_k_);
  params.mask.causal = p.causal;
  params.mask.top_left = p.top_left;
  params.mask.has_window = p.has_window;
  params.mask.window_left = view_.window_left;
  params.mask.window_right = view_.window_right;
  params.mask.attention_chunk = p.attention_chunk;
  params.mask.lo = interval_tensor(p, p.lo, lo_);
  params.mask.hi = interval_tensor(p, p.hi, hi_);
  params.has_softmax_scale = p.softmax_scale.has_value();
  params.softmax_scale = p.softmax_scale.value_or(0);
  params.softcap = p.softcap;
  if constexpr (std::is_same_v<Params, tandem_forward_params> || std::is_same_v<Params, tandem_varlen_forward_params>) {
    params.q_scale = scale_tensor(p.q_scale, q_scale_);
    params.k_scale = scale_tensor(p.k_scale, k_scale_);
    params.v_scale = scale_tensor(p.v_scale, v_scale_);
    params.v_transposed = p.v_transposed;
  }
  if constexpr (std::is_same_v<Params, tandem_varlen_forward_params> ||
                std::is_same_v<Params, tandem_varlen_backward_params>) {
    params.cu_seqlens_q = int32_vector(cu_seqlens_q_);
    params.cu_seqlens_k = int32_vector(cu_seqlens_k_);
  }
  params.exec.workspace = workspace_.as<void>();
  params.exec.workspace_bytes = workspace_.bytes();
}

template void DeviceProblem::fill_params(tandem_backward_params&, cudaStream_t) const;
template void DeviceProblem::fill_params(tandem_varlen_backward_params&, cudaStream_t) const;

tandem_status DeviceProblem::run(cudaStream_t stream, int32_t sm_margin, bool checked, bool needs_grad) {
  const auto run_with = [&](auto params, auto call) {
    fill_params(params, stream);
    params.exec.sm_margin = sm_margin;
    params.exec.checked = checked;
    params.exec.needs_grad = needs_grad;
    return call(&params);
  };
  return problem_.packed ? run_with(tandem_varlen_forward_params{}, tandem_varlen_forward)
                         : run_with(tandem_forward_params{}, tandem_forward);
}

tandem_status DeviceProblem::run_alone(bool needs_grad) {
  const Stream stream;
  poison_results();
  const tandem_status status = run(stream, 0, false, needs_grad);
  wait_for(stream);
  return status;
}

std::string DeviceProblem::fault(int64_t most_rows) const {
  std::string found = compare_with_oracle(view_, most_rows);
  if (found.empty() && count_changed_guards(view_.out_at, view_.out, problem_.out_dtype == TANDEM_FP32 ? 4 : 2) > 0) {
    found = "the guard of O was written";
  }
  if (found.empty() && !lse_.guards_intact()) found = "the guard of LSE was written";
  if (found.empty() && !workspace_.guards_intact()) found = "the guard of the workspace was written";
  return found.empty() ? "" : found + "; " + text();
}

bool DeviceProblem::same_bits(const DeviceProblem& other, const Fill& fill) const {
  return count_different_rows(view_, other.view_, fill) == 0;
}

std::string DeviceProblem::text() const {
  std::string text = describe(problem_);
  if (text.size() > 600) text = text.substr(0, 300) + " ... " + text.substr(text.size() - 250);
  return text + ", seed " + std::to_string(fill_.seed) + ", pattern " + std::to_string(static_cast<int>(fill_.pattern));
}

std::string check_on_device(const optest::Problem& problem, const Fill& fill, bool head_major) {
  try {
    DeviceProblem data(problem, fill, head_major);
    if (data.run_alone() != TANDEM_OK) return std::string(tandem_last_error()) + "; " + data.text();
    return data.fault();
  } catch (const std::exception& error) {
    return error.what();
  }
}

void wait_for(cudaStream_t stream) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  cudaError_t state;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) {
      const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
      std::fprintf(stderr, "A kernel has not ended after 30 s, in %s.%s\n", test ? test->test_suite_name() : "?",
                   test ? test->name() : "?");
      std::fflush(nullptr);
      std::_Exit(3);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  TANDEM_CHECK_CUDA(state);
}

}  // namespace tandem::gpu_test
