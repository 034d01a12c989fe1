#include "api/run_checks.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "api/host_arrays.h"
#include "api/tensor_rules.h"
#include "api/text.h"
#include "core/fp8.h"
#include "core/int_math.h"
#include "core/sequence.h"

namespace tandem {
namespace {

bool occupies_memory(const NamedTensor& named) {
  return named.present() && has_elements(*named.tensor);
}

Status check_address(const NamedTensor& named) {
  if (named.tensor->data == nullptr) {
    return Status::invalid_argument(concat(named.name, ".data is NULL but the tensor has elements"));
  }
  const uint64_t alignment = static_cast<uint64_t>(dtype_bytes(dtype_of(named)));
  const uint64_t misalignment = reinterpret_cast<uintptr_t>(named.tensor->data) % alignment;
  if (misalignment != 0) {
    return Status::invalid_argument(concat(named.name, ".data is ", misalignment, " bytes past a multiple of ",
                                           alignment, "; it must be aligned to its element, ",
                                           dtype_name(dtype_of(named))));
  }
  return Status::ok();
}

// The bytes that surely are the tensor's, counted from its first element: as far as elements follow without a gap. An
// axis adds to them if its stride leaves none.
uint64_t leading_bytes(const tandem_tensor& tensor) {
  int64_t elements = 1;
  std::array<bool, TANDEM_MAX_NDIM> added = {};
  for (bool grows = true; grows;) {
    grows = false;
    for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
      const int64_t stride = axis_stride(tensor, axis);
      if (added[static_cast<size_t>(axis)] || stride > elements) continue;
      elements += (tensor.shape[axis] - 1) * stride;
      grows = added[static_cast<size_t>(axis)] = true;
    }
  }
  return static_cast<uint64_t>(elements * dtype_bytes(static_cast<DType>(tensor.dtype)));
}

struct Memory {
  const NamedTensor* named;
  uintptr_t begin;
  uint64_t leading_bytes;

  bool has_begin_of(const Memory& other) const { return other.begin - begin < leading_bytes; }
};

// Finds what is certain: tensors with gaps may interleave, as slices of one buffer do.
Status check_no_overlap(const Memory& output, const Memory& other) {
  const bool output_is_later = other.has_begin_of(output);
  if (!output_is_later && !output.has_begin_of(other)) return Status::ok();
  const Memory& later = output_is_later ? output : other;
  const Memory& earlier = output_is_later ? other : output;
  const std::string where = later.begin == earlier.begin
                                ? concat("equal to ", earlier.named->name, ".data")
                                : concat(later.begin - earlier.begin, " bytes into ", earlier.named->name);
  return Status::invalid_argument(
      concat(later.named->name, ".data is ", where, "; ", output.named->name, " needs memory of its own"));
}

Status check_offset_values(const char* name, const Vector& offsets, int64_t batch, const char* rows_name,
                           int64_t rows) {
  int64_t previous = 0;
  for (int64_t i = 0; i <= batch; ++i) {
    const int64_t offset = static_cast<const int32_t*>(offsets.data)[i * offsets.stride];
    if (i == 0 && offset != 0) {
      return Status::invalid_argument(concat(name, "[0] is ", offset, "; offsets begin at 0"));
    }
    if (offset < previous) {
      return Status::invalid_argument(
          concat(name, "[", i, "] is ", offset, " but the offset before it is ", previous, "; offsets never decrease"));
    }
    if (offset > rows) {
      return Status::invalid_argument(
          concat(name, "[", i, "] is ", offset, " but ", rows_name, " is ", rows, "; offsets end within the buffer"));
    }
    previous = offset;
  }
  return Status::ok();
}

// `cu_seqlens` is absent in a dense problem, where every sequence has `rows` rows.
Status check_used_lengths(const char* name, const Vector& seqused, const Vector& cu_seqlens, int64_t batch,
                          int64_t rows) {
  if (!seqused.present()) return Status::ok();
  const auto offset = [&](int64_t i) {
    return int64_t{static_cast<const int32_t*>(cu_seqlens.data)[i * cu_seqlens.stride]};
  };
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t used = static_cast<const int32_t*>(seqused.data)[b * seqused.stride];
    const int64_t length = cu_seqlens.present() ? offset(b + 1) - offset(b) : rows;
    if (used < 0 || used > length) {
      return Status::invalid_argument(
          concat(name, "[", b, "] is ", used, "; allowed are 0 to ", length, ", the length of that sequence"));
    }
  }
  return Status::ok();
}

// `is_lower` tells lo from hi.
Status check_bound_values(const AttentionProblem& problem, const std::vector<SequenceSpan>& spans, bool is_lower) {
  const RowTensor& bound = is_lower ? problem.lo : problem.hi;
  if (!bound.present()) return Status::ok();
  const int64_t heads = bound.head_stride == 0 ? std::min<int64_t>(problem.nheads_q, 1) : problem.nheads_q;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const SequenceSpan& span = spans[static_cast<size_t>(b)];
    for (int64_t head = 0; head < heads; ++head) {
      const int32_t* values =
          static_cast<const int32_t*>(bound.data) + b * bound.batch_stride + head * bound.head_stride;
      for (int64_t row = span.q_begin; row < span.q_begin + span.q_len; ++row) {
        const int64_t value = values[row * bound.row_stride];
        if (is_lower ? value <= span.k_len : value >= 0) continue;
        return Status::invalid_argument(concat(
            is_lower ? "mask.lo" : "mask.hi", " is ", value, " at sequence ", b, ", head ", head, ", row ",
            row - span.q_begin, "; bounds count from the start of the sequence, which has ", span.k_len, " keys"));
      }
    }
  }
  return Status::ok();
}

Status check_rotary_positions(const QuantizeProblem& problem, int64_t b, int64_t length) {
  if (problem.rotary_pairs == 0 || length == 0) return Status::ok();
  const Vector& offsets = problem.rotary_offset;
  const int64_t first = offsets.present() ? static_cast<const int32_t*>(offsets.data)[b * offsets.stride] : 0;
  if (first >= 0 && first + length <= problem.rotary_positions) return Status::ok();
  return Status::invalid_argument(concat("rotary_offset is ", first, " at sequence ", b, ", which has ", length,
                                         " rows, but rotary_cos.shape[0] is ", problem.rotary_positions));
}

Status check_scale_blocks(const char* name, const Scales& scales, int64_t longest) {
  const int64_t needed = ceil_div(longest, kScaleBlockRows);
  if (!scales.present() || scales.block_stride == 0 || scales.blocks >= needed) return Status::ok();
  return Status::invalid_argument(
      concat(name, ".shape[2] is ", scales.blocks, " but the longest sequence has ", needed, " blocks of 128 rows"));
}

}  // namespace

Status check_memory(const NamedTensor* tensors, int count) {
  std::vector<Memory> memory;
  for (const NamedTensor* named = tensors; named != tensors + count; ++named) {
    if (!occupies_memory(*named)) continue;
    TANDEM_RETURN_IF_ERROR(check_address(*named));
    memory.push_back({named, reinterpret_cast<uintptr_t>(named->tensor->data), leading_bytes(*named->tensor)});
  }
  for (const Memory& output : memory) {
    if (output.named->access != Access::kOutput) continue;
    for (const Memory& other : memory) {
      if (&other != &output) TANDEM_RETURN_IF_ERROR(check_no_overlap(output, other));
    }
  }
  return Status::ok();
}

Status check_workspace(const Execution& exec, const Workspace& needed) {
  if (needed.bytes == 0) return Status::ok();
  if (exec.workspace == nullptr) {
    return {TANDEM_WORKSPACE_TOO_SMALL, concat("exec.workspace is NULL; this problem needs ", needed.bytes, " bytes")};
  }
  if (exec.workspace_bytes < needed.bytes) {
    return {TANDEM_WORKSPACE_TOO_SMALL,
            concat("exec.workspace_bytes is ", exec.workspace_bytes, "; this problem needs ", needed.bytes)};
  }
  if (reinterpret_cast<uintptr_t>(exec.workspace) % needed.alignment != 0) {
    return {TANDEM_WORKSPACE_TOO_SMALL,
            concat("exec.workspace is misaligned; its address must be a multiple of ", needed.alignment)};
  }
  return Status::ok();
}

Status check_values(const AttentionProblem& problem) {
  if (problem.packed) {
    TANDEM_RETURN_IF_ERROR(
        check_offset_values("cu_seqlens_q", problem.cu_seqlens_q, problem.batch, "q.shape[0]", problem.total_q));
    TANDEM_RETURN_IF_ERROR(
        check_offset_values("cu_seqlens_k", problem.cu_seqlens_k, problem.batch, "k.shape[0]", problem.total_k));
  }
  TANDEM_RETURN_IF_ERROR(
      check_used_lengths("seqused_q", problem.seqused_q, problem.cu_seqlens_q, problem.batch, problem.seqlen_q));
  TANDEM_RETURN_IF_ERROR(
      check_used_lengths("seqused_k", problem.seqused_k, problem.cu_seqlens_k, problem.batch, problem.seqlen_k));

  std::vector<SequenceSpan> spans(static_cast<size_t>(problem.batch));
  read_sequence_spans(problem, spans.data());
  int64_t longest_q = 0;
  int64_t longest_k = 0;
  for (const SequenceSpan& span : spans) {
    longest_q = std::max(longest_q, span.q_len);
    longest_k = std::max(longest_k, span.k_len);
  }
  TANDEM_RETURN_IF_ERROR(check_scale_blocks("q_scale", problem.q_scale, longest_q));
  TANDEM_RETURN_IF_ERROR(check_scale_blocks("k_scale", problem.k_scale, longest_k));
  TANDEM_RETURN_IF_ERROR(check_scale_blocks("v_scale", problem.v_scale, longest_k));
  TANDEM_RETURN_IF_ERROR(check_bound_values(problem, spans, true));
  return check_bound_values(problem, spans, false);
}

Status check_values(const Backend& backend, const AttentionProblem& problem) {
  if (backend.copy_to_host == nullptr) return check_values(problem);
  AttentionProblem on_host = problem;
  HostArrays arrays;
  TANDEM_RETURN_IF_ERROR(arrays.fetch(backend, &on_host));
  return check_values(on_host);
}

Status check_values(const QuantizeProblem& problem) {
  if (problem.packed) {
    TANDEM_RETURN_IF_ERROR(
        check_offset_values("cu_seqlens", problem.cu_seqlens, problem.batch, "x.shape[0]", problem.total));
  }
  TANDEM_RETURN_IF_ERROR(
      check_used_lengths("seqused", problem.seqused, problem.cu_seqlens, problem.batch, problem.seqlen));
  std::vector<RowSpan> spans(static_cast<size_t>(problem.batch));
  read_row_spans(problem, spans.data());
  int64_t longest = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t length = spans[static_cast<size_t>(b)].length;
    longest = std::max(longest, length);
    TANDEM_RETURN_IF_ERROR(check_rotary_positions(problem, b, length));
  }
  return check_scale_blocks("scale", problem.scale, longest);
}

Status check_values(const Backend& backend, const QuantizeProblem& problem) {
  if (backend.copy_to_host == nullptr) return check_values(problem);
  QuantizeProblem on_host = problem;
  HostArrays arrays;
  TANDEM_RETURN_IF_ERROR(arrays.fetch(backend, &on_host));
  return check_values(on_host);
}

}  // namespace tandem
