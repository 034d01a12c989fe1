#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/fp8.h"
#include "core/int_math.h"
#include "core/problem.h"
#include "core/sequence.h"
#include "cpu/tiled_scratch.h"

// What the quantiser works on: blocks of 128 rows of one head of one sequence, and where they lie.
namespace tandem {

struct RowBlock {
  int64_t sequence = 0;
  int64_t head = 0;
  int64_t row = 0;  // first, counted from the start of the sequence
  int64_t rows = 0;
};

// What one thread needs.
struct QuantizeScratch {
  float* x;    // (headdim, kScaleBlockRows)
  float* row;  // a row, or the slots of a column
  float* cos;  // (rotary_pairs): a row of the tables
  float* sin;
};

struct QuantizeRun {
  const QuantizeProblem& problem;
  int num_threads = 1;
  RowSpan* spans = nullptr;        // (batch)
  int64_t* first_block = nullptr;  // (batch + 1), of one head
  float* largest = nullptr;        // by block, where a group has several
  float* signs = nullptr;          // (headdim): D
  char* thread_scratch = nullptr;
  uint64_t thread_bytes = 0;

  int64_t block_count() const { return first_block[problem.batch] * problem.nheads; }

  RowBlock block_at(int64_t index) const {
    const int64_t of_head = index / problem.nheads;
    const int64_t* after = std::upper_bound(first_block, first_block + problem.batch + 1, of_head);
    const int64_t sequence = after - first_block - 1;
    const int64_t row = (of_head - first_block[sequence]) * kScaleBlockRows;
    return {sequence, index % problem.nheads, row, std::min(kScaleBlockRows, spans[sequence].length - row)};
  }

  int64_t x_offset(const RowBlock& block, int64_t i) const {
    return block.sequence * problem.x.batch_stride + block.head * problem.x.head_stride +
           (spans[block.sequence].begin + block.row + i) * problem.x.row_stride;
  }
  // Transposed: of the block's first slot in column 0.
  int64_t out_offset(const RowBlock& block, int64_t i) const {
    const int64_t first = block.sequence * problem.out.batch_stride + block.head * problem.out.head_stride;
    if (problem.transposed) return first + out_span(block.sequence).begin + block.row;
    return first + (spans[block.sequence].begin + block.row + i) * problem.out.row_stride;
  }

  int64_t table_position(const RowBlock& block, int64_t i) const {
    const Vector& offset = problem.rotary_offset;
    const int64_t first =
        offset.present() ? static_cast<const int32_t*>(offset.data)[block.sequence * offset.stride] : 0;
    return std::clamp<int64_t>(first + block.row + i, 0, problem.rotary_positions - 1);
  }

  float& scale_of(const RowBlock& block) const {
    const Scales& scale = problem.scale;
    const int64_t index = std::min(block.row / kScaleBlockRows, scale.blocks - 1);
    return static_cast<float*>(
        scale.data)[block.sequence * scale.batch_stride + block.head * scale.head_stride + index * scale.block_stride];
  }

  template <typename Visit>
  void for_each_scale(Visit visit) const {
    const int64_t batch = problem.scale_per_head ? problem.batch : 1;
    const int64_t nheads = problem.scale_per_head ? problem.nheads : 1;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < nheads; ++h) {
        for (int64_t n = 0; n < problem.scale.blocks; ++n) visit(scale_of({b, h, n * kScaleBlockRows, 0}));
      }
    }
  }

  bool each_block_has_its_scale() const {
    if (!problem.scale_per_block) return false;
    return std::all_of(spans, spans + problem.batch, [&](const RowSpan& span) {
      return ceil_div(span.length, kScaleBlockRows) <= problem.scale.blocks;
    });
  }

  QuantizeScratch scratch_of(int thread) const;
  void read_sequences();

  // Rows, or slots, that no sequence has become 0.
  void zero_gaps() const {
    const int64_t batch = problem.batch;
    const int64_t end = out_total();
    if (!problem.packed) {
      for (int64_t b = 0; b < batch; ++b) zero(b, out_span(b).length, end);
      return;
    }
    int64_t written = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const RowSpan span = out_span(b);
      zero(0, written, span.begin);
      written = span.begin + span.length;
    }
    zero(0, written, end);
  }

 private:
  int64_t out_total() const {
    if (!problem.transposed) return problem.total;
    return problem.packed ? packed_slot_begin(problem.total, problem.batch) : dense_slots(problem.total);
  }

  // Where a sequence lies in out: its rows, or its slots up to a whole group.
  RowSpan out_span(int64_t b) const {
    if (!problem.transposed) return spans[b];
    return {problem.packed ? packed_slot_begin(spans[b].begin, b) : 0, dense_slots(spans[b].length)};
  }

  void zero(int64_t b, int64_t begin, int64_t end) const {
    const Tensor& out = problem.out;
    if (begin >= end) return;
    for (int64_t h = 0; h < problem.nheads; ++h) {
      uint8_t* head = static_cast<uint8_t*>(out.data) + b * out.batch_stride + h * out.head_stride;
      if (problem.transposed) {
        for (int64_t c = 0; c < problem.headdim; ++c) {
          std::memset(head + c * out.row_stride + begin, 0, static_cast<size_t>(end - begin));
        }
      } else {
        for (int64_t row = begin; row < end; ++row) {
          std::memset(head + row * out.row_stride, 0, static_cast<size_t>(problem.headdim));
        }
      }
    }
  }
};

inline QuantizeScratch lay_out_quantize_scratch(const QuantizeProblem& problem, Arena& arena) {
  QuantizeScratch scratch;
  scratch.x = arena.take<float>(problem.headdim * kScaleBlockRows);
  scratch.row = arena.take<float>(std::max(problem.headdim, kScaleBlockRows));
  scratch.cos = arena.take<float>(problem.rotary_pairs);
  scratch.sin = arena.take<float>(problem.rotary_pairs);
  return scratch;
}

// Lays out the workspace from `base` on (null: only to measure it).
inline QuantizeRun lay_out_quantize(const QuantizeProblem& problem, int num_threads, Arena& arena) {
  const int64_t most_blocks = problem.packed ? problem.total / kScaleBlockRows + problem.batch
                                             : problem.batch * ceil_div(problem.seqlen, kScaleBlockRows);
  QuantizeRun run{problem, num_threads};
  run.spans = arena.take<RowSpan>(problem.batch);
  run.first_block = arena.take<int64_t>(problem.batch + 1);
  run.largest = arena.take<float>(most_blocks * problem.nheads);
  run.signs = arena.take<float>(problem.headdim);
  Arena one_thread(nullptr);
  lay_out_quantize_scratch(problem, one_thread);
  run.thread_bytes = one_thread.bytes();
  run.thread_scratch = arena.take<char>(static_cast<int64_t>(run.thread_bytes) * num_threads);
  return run;
}

inline QuantizeScratch QuantizeRun::scratch_of(int thread) const {
  Arena arena(thread_scratch + static_cast<uint64_t>(thread) * thread_bytes);
  return lay_out_quantize_scratch(problem, arena);
}

inline void QuantizeRun::read_sequences() {
  read_row_spans(problem, spans);
  first_block[0] = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    first_block[b + 1] = first_block[b] + ceil_div(spans[b].length, kScaleBlockRows);
  }
  for (int64_t c = 0; c < problem.headdim; ++c) {
    signs[c] = rotation_is_negative(problem.seed, static_cast<int>(c)) ? -1.0f : 1.0f;
  }
}

}  // namespace tandem
