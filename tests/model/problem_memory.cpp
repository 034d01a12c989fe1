#include "problem_memory.h"

#include "core/dtype.h"
#include "float_types.h"

namespace tandem::model {
namespace {

using optest::Problem;

constexpr uint8_t kNanE4m3 = 0x7f;
constexpr int64_t kUnusedSlots = 32;  // after those of each line of V^T

DType type_of(int32_t dtype) {
  return static_cast<DType>(dtype);  // the numbers of tandem.h
}

size_t elements_of(int64_t rows, int64_t heads, int64_t headdim) {
  return static_cast<size_t>(rows * heads * headdim);
}

void note_unwritten(const std::string& found, std::string& unwritten) {
  if (unwritten.empty()) unwritten = found;
}

template <typename T>
Vector vector(GlobalMemory& global, const char* name, DType dtype, const std::vector<T>& values) {
  if (values.empty()) return {};
  return {global.upload(name, values), dtype, 1};
}

}  // namespace

AttentionProblem ProblemMemory::attention_problem(const optest::Inputs& inputs) {
  const Problem& p = problem_;
  AttentionProblem problem;
  problem.packed = p.packed;
  problem.batch = p.batch;
  problem.nheads_q = p.nheads_q;
  problem.nheads_k = p.nheads_k;
  problem.headdim = p.headdim;
  problem.headdim_v = p.headdim_v;
  problem.seqlen_q = p.packed ? 0 : p.seqlen_q;
  problem.seqlen_k = p.packed ? 0 : p.seqlen_k;
  problem.total_q = p.packed ? p.total_q : p.seqlen_q;
  problem.total_k = p.packed ? p.total_k : p.seqlen_k;
  problem.dtype = type_of(p.dtype);
  problem.out_dtype = type_of(p.out_dtype);
  problem.v_transposed = p.v_transposed;
  problem.softmax_scale = p.scale();
  problem.softcap = p.softcap;
  problem.mask.causal = p.causal;
  problem.mask.top_left = p.top_left;
  problem.mask.window_left = p.has_window ? p.window_left : -1;
  problem.mask.window_right = p.has_window ? p.window_right : -1;
  problem.mask.attention_chunk = p.attention_chunk;
  problem.q = upload("q", inputs.q, p.rows_q(), p.nheads_q, p.headdim);
  problem.k = upload("k", inputs.k, p.rows_k(), p.nheads_k, p.headdim);
  problem.v =
      p.v_transposed ? upload_transposed_v(inputs.v) : upload("v", inputs.v, p.rows_k(), p.nheads_k, p.headdim_v);
  problem.q_scale = scales("q_scale", p.q_scale, p.nheads_q);
  problem.k_scale = scales("k_scale", p.k_scale, p.nheads_k);
  problem.v_scale = scales("v_scale", p.v_scale, p.nheads_k);
  if (p.lo) problem.lo = intervals("lo", *p.lo);
  if (p.hi) problem.hi = intervals("hi", *p.hi);
  problem.sink = vector(global_, "sink", DType::kFp32, std::vector<float>(p.sink.begin(), p.sink.end()));
  problem.cu_seqlens_q = vector(global_, "cu_seqlens_q", DType::kInt32, p.cu_seqlens_q);
  problem.cu_seqlens_k = vector(global_, "cu_seqlens_k", DType::kInt32, p.cu_seqlens_k);
  problem.seqused_q = vector(global_, "seqused_q", DType::kInt32, p.seqused_q);
  problem.seqused_k = vector(global_, "seqused_k", DType::kInt32, p.seqused_k);
  return problem;
}

Tensor ProblemMemory::tensor(void* data, DType dtype, int64_t rows, int64_t heads, int64_t headdim) const {
  const int64_t batch_stride = problem_.packed ? 0 : rows / problem_.batch * heads * headdim;
  return {data, dtype, batch_stride, heads * headdim, headdim};
}

Tensor ProblemMemory::upload(const char* name, const std::vector<double>& values, int64_t rows, int64_t heads,
                             int64_t headdim) {
  const DType dtype = type_of(problem_.dtype);
  std::vector<uint8_t> bytes(elements_of(rows, heads, headdim) * static_cast<size_t>(dtype_bytes(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    optest::store(bytes.data(), problem_.dtype, static_cast<int64_t>(i), values[i]);
  }
  return tensor(global_.upload_bytes(name, bytes.data(), bytes.size()), dtype, rows, heads, headdim);
}

Tensor ProblemMemory::upload_transposed_v(const std::vector<double>& values) {
  const Problem& p = problem_;
  const int64_t slots = p.stored_v_shape().back();
  const int64_t stride = slots + kUnusedSlots;
  const int64_t entries = p.packed ? 1 : p.batch;
  std::vector<uint8_t> bytes(elements_of(entries * p.nheads_k, p.headdim_v, stride), kNanE4m3);
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t index = p.stored_v_index(static_cast<int64_t>(i));
    if (index >= 0) optest::store(bytes.data(), p.dtype, index / slots * stride + index % slots, values[i]);
  }
  const int64_t head_stride = p.headdim_v * stride;
  const int64_t batch_stride = p.packed ? 0 : p.nheads_k * head_stride;
  return {global_.upload_bytes("v", bytes.data(), bytes.size()), type_of(p.dtype), batch_stride, stride, head_stride};
}

Scales ProblemMemory::scales(const char* name, const std::optional<optest::ScaleSet>& given, int64_t nheads) {
  if (!given) return {};
  Scales result;
  result.data = global_.upload(name, std::vector<float>(given->values.begin(), given->values.end()));
  result.dtype = DType::kFp32;
  if (given->ndim > 1) {
    result.batch_stride = given->heads * given->blocks;
    result.head_stride = given->blocks;
    result.block_stride = given->blocks > 1 ? 1 : 0;
    result.heads_per_scale = nheads / given->heads;
    result.blocks = given->blocks;
  }
  return result;
}

Tensor ProblemMemory::allocate(const char* name, int64_t rows, int64_t heads, int64_t headdim) {
  const DType dtype = type_of(problem_.out_dtype);
  const size_t bytes = elements_of(rows, heads, headdim) * static_cast<size_t>(dtype_bytes(dtype));
  return tensor(global_.allocate(name, bytes), dtype, rows, heads, headdim);
}

RowTensor ProblemMemory::row_tensor(void* data) const {
  const int64_t rows = problem_.packed ? problem_.total_q : problem_.seqlen_q;
  return {data, DType::kFp32, problem_.packed ? 0 : problem_.nheads_q * rows, rows, 1};
}

RowTensor ProblemMemory::upload_row_values(const char* name, const std::vector<double>& values) {
  return row_tensor(global_.upload(name, std::vector<float>(values.begin(), values.end())));
}

RowTensor ProblemMemory::allocate_row_values(const char* name) {
  return row_tensor(global_.allocate(name, elements_of(problem_.rows_q(), problem_.nheads_q, sizeof(float))));
}

RowTensor ProblemMemory::intervals(const char* name, const optest::Intervals& given) {
  const int64_t rows = problem_.packed ? problem_.total_q : problem_.seqlen_q;
  const int64_t heads = given.per_head ? problem_.nheads_q : 1;
  const int64_t batch_stride = given.per_batch && !problem_.packed ? heads * rows : 0;
  return {global_.upload(name, given.values), DType::kInt32, batch_stride, given.per_head ? rows : 0, 1};
}

std::vector<double> ProblemMemory::values_of(const Tensor& tensor, int64_t rows, int64_t heads, int64_t headdim,
                                             std::string& unwritten) const {
  std::vector<double> values(elements_of(rows, heads, headdim));
  note_unwritten(global_.unwritten(tensor.data, values.size() * static_cast<size_t>(dtype_bytes(tensor.dtype))),
                 unwritten);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = optest::load(static_cast<const uint8_t*>(tensor.data), static_cast<int32_t>(tensor.dtype),
                             static_cast<int64_t>(i));
  }
  return values;
}

std::vector<double> ProblemMemory::values_of(const RowTensor& tensor, std::string& unwritten) const {
  const size_t elements = elements_of(problem_.rows_q(), problem_.nheads_q, 1);
  note_unwritten(global_.unwritten(tensor.data, elements * sizeof(float)), unwritten);
  const auto* const values = static_cast<const float*>(tensor.data);
  return {values, values + elements};
}

}  // namespace tandem::model
