#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "core/sequence.h"
#include "cpu/tiled_scratch.h"
#include "cpu/tiled_tiles.h"

// What forward and backward share around their tiles: the head of the workspace, and rows that belong to no sequence.
namespace tandem {

struct TiledRun {
  const AttentionProblem& problem;
  int num_threads = 1;
  SequenceSpan* spans = nullptr;   // (batch)
  int64_t* first_unit = nullptr;   // (batch + 1): units of work of all sequences before; each pass defines its unit
  char* thread_scratch = nullptr;  // (num_threads, thread_bytes)
  uint64_t thread_bytes = 0;

  void* scratch_of(int thread) const { return thread_scratch + static_cast<uint64_t>(thread) * thread_bytes; }
};

// Lays out the workspace from `base` on (null: only to measure it) for threads that need thread_bytes each.
inline TiledRun lay_out_run(const AttentionProblem& problem, int num_threads, uint64_t thread_bytes, Arena& arena) {
  TiledRun run{problem, num_threads};
  run.spans = arena.take<SequenceSpan>(problem.batch);
  run.first_unit = arena.take<int64_t>(problem.batch + 1);
  run.thread_bytes = thread_bytes;
  run.thread_scratch = arena.take<char>(static_cast<int64_t>(thread_bytes) * num_threads);
  return run;
}

// Fills first_unit from units_of(span), the number of units of one key head of a sequence; returns their total.
template <typename UnitsOf>
int64_t count_units(const TiledRun& run, UnitsOf units_of) {
  int64_t total = 0;
  for (int64_t b = 0; b < run.problem.batch; ++b) {
    run.first_unit[b] = total;
    total += units_of(run.spans[b]) * run.problem.nheads_k;
  }
  run.first_unit[run.problem.batch] = total;
  return total;
}

// Calls write(sequence, begin, end) for each run of rows that belongs to no sequence [8].
template <typename Write>
void for_each_query_gap(const TiledRun& run, Write write) {
  for (int64_t i = 0; i <= run.problem.batch; ++i) {
    const Gap gap = query_gap(run.problem, run.spans, i);
    if (gap.begin < gap.end) write(gap.sequence, gap.begin, gap.end);
  }
}
template <typename Write>
void for_each_key_gap(const TiledRun& run, Write write) {
  for (int64_t i = 0; i <= run.problem.batch; ++i) {
    const Gap gap = key_gap(run.problem, run.spans, i);
    if (gap.begin < gap.end) write(gap.sequence, gap.begin, gap.end);
  }
}

void zero_rows(const Tensor& tensor, int64_t sequence, int64_t begin, int64_t end, int64_t nheads, int64_t columns);

double load_value(const Vector& vector, int64_t index);  // of fp32 or fp64
double load_value(const RowTensor& tensor, int64_t sequence, int64_t head, int64_t row);
void store_value(const RowTensor& tensor, int64_t sequence, int64_t head, int64_t row, double value);
void store_value(const Vector& vector, int64_t index, double value);

}  // namespace tandem
