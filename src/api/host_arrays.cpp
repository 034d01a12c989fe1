#include "api/host_arrays.h"

namespace tandem {

Status HostArrays::copy(const Backend& backend, const Execution& exec, int64_t elements, void** data) {
  std::vector<int32_t>& values = copies_.emplace_back(static_cast<size_t>(elements));
  const void* source = *data;
  *data = values.data();
  return backend.copy_to_host(exec, values.data(), source, values.size() * sizeof(int32_t));
}

Status HostArrays::copy(const Backend& backend, const Execution& exec, int64_t count, Vector* vector) {
  if (!vector->present() || count == 0) return Status::ok();
  return copy(backend, exec, (count - 1) * vector->stride + 1, &vector->data);
}

Status HostArrays::copy(const Backend& backend, const AttentionProblem& problem, RowTensor* bound) {
  if (!bound->present() || problem.batch == 0 || problem.nheads_q == 0 || problem.total_q == 0) return Status::ok();
  const int64_t last = (problem.batch - 1) * bound->batch_stride + (problem.nheads_q - 1) * bound->head_stride +
                       (problem.total_q - 1) * bound->row_stride;
  return copy(backend, problem.exec, last + 1, &bound->data);
}

Status HostArrays::fetch(const Backend& backend, AttentionProblem* problem) {
  const Execution& exec = problem->exec;
  TANDEM_RETURN_IF_ERROR(copy(backend, exec, problem->batch + 1, &problem->cu_seqlens_q));
  TANDEM_RETURN_IF_ERROR(copy(backend, exec, problem->batch + 1, &problem->cu_seqlens_k));
  TANDEM_RETURN_IF_ERROR(copy(backend, exec, problem->batch, &problem->seqused_q));
  TANDEM_RETURN_IF_ERROR(copy(backend, exec, problem->batch, &problem->seqused_k));
  TANDEM_RETURN_IF_ERROR(copy(backend, *problem, &problem->lo));
  return copy(backend, *problem, &problem->hi);
}

Status HostArrays::fetch(const Backend& backend, QuantizeProblem* problem) {
  const Execution& exec = problem->exec;
  TANDEM_RETURN_IF_ERROR(copy(backend, exec, problem->batch + 1, &problem->cu_seqlens));
  TANDEM_RETURN_IF_ERROR(copy(backend, exec, problem->batch, &problem->seqused));
  return copy(backend, exec, problem->batch, &problem->rotary_offset);
}

}  // namespace tandem
