#include "core/sequence.h"

#include <algorithm>

namespace tandem {
namespace {

int64_t read_int32(const Vector& vector, int64_t index) {
  return static_cast<const int32_t*>(vector.data)[index * vector.stride];
}

int64_t used_length(const Vector& seqused, int64_t index, int64_t length) {
  return seqused.present() ? std::clamp<int64_t>(read_int32(seqused, index), 0, length) : length;
}

// Walks cu_seqlens; next() never goes back and never leaves [0, total].
class Offsets {
 public:
  Offsets(const Vector& cu_seqlens, int64_t total) : cu_seqlens_(cu_seqlens), total_(total) {}

  int64_t next() {
    last_ = std::clamp(read_int32(cu_seqlens_, index_++), last_, total_);
    return last_;
  }

 private:
  const Vector& cu_seqlens_;
  int64_t total_;
  int64_t index_ = 0;
  int64_t last_ = 0;
};

}  // namespace

void read_sequence_spans(const AttentionProblem& problem, SequenceSpan* spans) {
  if (!problem.packed) {
    for (int64_t b = 0; b < problem.batch; ++b) {
      spans[b] = {0, used_length(problem.seqused_q, b, problem.seqlen_q), 0,
                  used_length(problem.seqused_k, b, problem.seqlen_k)};
    }
    return;
  }
  Offsets offsets_q(problem.cu_seqlens_q, problem.total_q);
  Offsets offsets_k(problem.cu_seqlens_k, problem.total_k);
  int64_t q_begin = offsets_q.next();
  int64_t k_begin = offsets_k.next();
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t q_end = offsets_q.next();
    const int64_t k_end = offsets_k.next();
    spans[b] = {q_begin, used_length(problem.seqused_q, b, q_end - q_begin), k_begin,
                used_length(problem.seqused_k, b, k_end - k_begin)};
    q_begin = q_end;
    k_begin = k_end;
  }
}

}  // namespace tandem
