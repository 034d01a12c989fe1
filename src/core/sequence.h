#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem {

// Where one sequence lies: its used rows are [q_begin, q_begin + q_len) of the buffer that the batch entry spans, and
// its keys [k_begin, k_begin + k_len). Positions inside a sequence count from 0; masks see q_len and k_len only.
struct SequenceSpan {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t k_begin = 0;
  int64_t k_len = 0;
};

// Reads offsets and lengths on the host and fills spans[0 .. batch). Values are clamped, so that no span leaves its
// buffer and no two spans of a packed problem share a row, whatever the arrays hold [13]:
// an offset is raised to its predecessors' maximum and to 0, and lowered to the total.
void read_sequence_spans(const AttentionProblem& problem, SequenceSpan* spans);

// One side of it: rows [begin, begin + length) of the buffer.
struct RowSpan {
  int64_t begin = 0;
  int64_t length = 0;
};

void read_row_spans(const QuantizeProblem& problem, RowSpan* spans);

}  // namespace tandem
