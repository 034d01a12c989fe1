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

// Calls set(b, begin, length) for each sequence. Without cu_seqlens, all are `seqlen` rows of buffers of their own.
template <typename Set>
void for_each_span(const Vector& cu_seqlens, const Vector& seqused, int64_t batch, int64_t seqlen, int64_t total,
                   Set set) {
  if (!cu_seqlens.present()) {
    for (int64_t b = 0; b < batch; ++b) set(b, 0, used_length(seqused, b, seqlen));
    return;
  }
  Offsets offsets(cu_seqlens, total);
  int64_t begin = offsets.next();
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t end = offsets.next();
    set(b, begin, used_length(seqused, b, end - begin));
    begin = end;
  }
}

}  // namespace

void read_sequence_spans(const AttentionProblem& p, SequenceSpan* spans) {
  for_each_span(p.cu_seqlens_q, p.seqused_q, p.batch, p.seqlen_q, p.total_q,
                [&](int64_t b, int64_t begin, int64_t len) {
                  spans[b].q_begin = begin;
                  spans[b].q_len = len;
                });
  for_each_span(p.cu_seqlens_k, p.seqused_k, p.batch, p.seqlen_k, p.total_k,
                [&](int64_t b, int64_t begin, int64_t len) {
                  spans[b].k_begin = begin;
                  spans[b].k_len = len;
                });
}

void read_row_spans(const QuantizeProblem& p, RowSpan* spans) {
  for_each_span(p.cu_seqlens, p.seqused, p.batch, p.seqlen, p.total,
                [&](int64_t b, int64_t begin, int64_t length) { spans[b] = {begin, length}; });
}

}  // namespace tandem
