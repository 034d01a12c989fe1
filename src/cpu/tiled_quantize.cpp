// The quantiser of the tiled backend. A block of 128 rows of one head lies transposed in scratch, (headdim, rows), so
// that each step of the Hadamard transform adds and subtracts whole vectors of rows:
//
//   x = rows, turned by their positions, times the signs of D       (row by row, as they are loaded)
//   x = H x / sqrt(headdim)                                         (butterflies down the columns; sums of 12 last)
//   largest magnitude of the block -> scale of its group -> out
//
// Where every group is one block, this is one pass; otherwise x is computed a second time once the scales are known.
// Nothing but additions, subtractions and single products is done in fp32, so that no compiler's choice of fused
// operations changes a bit; the rotary embedding is done in double, where its products are exact.

#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tiled_quantize.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>

#include "core/fp8.h"
#include "cpu/simd/convert-inl.h"
#include "cpu/simd/tile-inl.h"
#include "cpu/tiled_quantize.h"
#include "cpu/tiled_quantize_run.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kRows = static_cast<size_t>(kScaleBlockRows);

HWY_INLINE void embed_row(const QuantizeProblem& problem, int64_t position, const QuantizeScratch& scratch) {
  const int64_t pairs = problem.rotary_pairs;
  const bool interleaved = problem.rotary_interleaved;
  const auto load = [&](const RotaryTable& table, float* values) {
    load_row(table.data, table.dtype, position * table.position_stride, static_cast<size_t>(pairs), values);
  };
  load(problem.rotary_cos, scratch.cos);
  load(problem.rotary_sin, scratch.sin);
  for (int64_t n = 0; n < pairs; ++n) {
    float& first = scratch.row[interleaved ? 2 * n : n];
    float& second = scratch.row[interleaved ? 2 * n + 1 : pairs + n];
    const double a = static_cast<double>(first);
    const double b = static_cast<double>(second);
    const double cos = static_cast<double>(scratch.cos[n]);
    const double sin = static_cast<double>(scratch.sin[n]);
    first = static_cast<float>(a * cos - b * sin);
    second = static_cast<float>(a * sin + b * cos);
  }
}

// a, b = a + b, a - b for columns of rows.
HWY_INLINE void butterfly(float* a, float* b) {
  const Lanes<float> d;
  for (size_t i = 0; i < kRows; i += hn::Lanes(d)) {
    const auto x = hn::Load(d, a + i);
    const auto y = hn::Load(d, b + i);
    hn::Store(hn::Add(x, y), d, a + i);
    hn::Store(hn::Sub(x, y), d, b + i);
  }
}

// Paley's matrix of 12 over columns that lie `stride` apart.
HWY_INLINE void transform_12(float* x, size_t stride) {
  const Lanes<float> d;
  for (size_t i = 0; i < kRows; i += hn::Lanes(d)) {
    hn::Vec<decltype(d)> column[kHadamardBase];
    for (int c = 0; c < kHadamardBase; ++c) column[c] = hn::Load(d, x + static_cast<size_t>(c) * stride + i);
    for (int r = 0; r < kHadamardBase; ++r) {
      auto sum = paley12(r, 0) > 0 ? column[0] : hn::Neg(column[0]);
      for (int c = 1; c < kHadamardBase; ++c) {
        sum = paley12(r, c) > 0 ? hn::Add(sum, column[c]) : hn::Sub(sum, column[c]);
      }
      hn::Store(sum, d, x + static_cast<size_t>(r) * stride + i);
    }
  }
}

HWY_INLINE void hadamard_transform(int64_t headdim, float* x) {
  const int64_t size = sylvester_size(headdim);
  for (int64_t half = 1; half < size; half *= 2) {
    for (int64_t c = 0; c < headdim; ++c) {
      if ((c % size & half) == 0)
        butterfly(x + static_cast<size_t>(c) * kRows, x + static_cast<size_t>(c + half) * kRows);
    }
  }
  if (size == headdim) return;
  for (int64_t c = 0; c < size; ++c) {
    transform_12(x + static_cast<size_t>(c) * kRows, static_cast<size_t>(size) * kRows);
  }
}

// Multiplies the block and returns the largest finite magnitude of the products.
HWY_INLINE float scale_block(int64_t headdim, float factor, float* x) {
  const Lanes<float> d;
  const auto f = hn::Set(d, factor);
  const auto finite = hn::Set(d, std::numeric_limits<float>::max());
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < static_cast<size_t>(headdim) * kRows; i += hn::Lanes(d)) {
    const auto product = hn::Mul(hn::Load(d, x + i), f);
    const auto magnitude = hn::Abs(product);
    largest = hn::Max(largest, hn::IfThenElseZero(hn::Le(magnitude, finite), magnitude));
    hn::Store(product, d, x + i);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Fills x (headdim, kRows), rows past the block's with 0; returns the largest finite magnitude.
float prepare_block(const QuantizeRun& run, const RowBlock& block, const QuantizeScratch& scratch) {
  const QuantizeProblem& problem = run.problem;
  const size_t headdim = static_cast<size_t>(problem.headdim);
  for (int64_t i = 0; i < kScaleBlockRows; ++i) {
    if (i < block.rows) {
      load_row(problem.x.data, problem.x.dtype, run.x_offset(block, i), headdim, scratch.row);
      if (problem.rotary_pairs > 0) embed_row(problem, run.table_position(block, i), scratch);
      for (size_t c = 0; problem.rotate && c < headdim; ++c) scratch.row[c] *= run.signs[c];
    } else {
      std::fill_n(scratch.row, headdim, 0.0f);
    }
    scatter_column(scratch.row, problem.headdim, 1.0f, scratch.x + i, kRows);
  }
  if (problem.rotate) hadamard_transform(problem.headdim, scratch.x);
  const double root = problem.rotate ? std::sqrt(static_cast<double>(problem.headdim)) : 1;
  return scale_block(problem.headdim, static_cast<float>(1 / root), scratch.x);
}

void store_block(const QuantizeRun& run, const RowBlock& block, float scale, const QuantizeScratch& scratch) {
  const QuantizeProblem& problem = run.problem;
  scale_block(problem.headdim, 1 / scale, scratch.x);
  if (!problem.transposed) {
    for (int64_t i = 0; i < block.rows; ++i) {
      gather_column(scratch.x + i, kRows, problem.headdim, scratch.row);
      store_row(scratch.row, static_cast<size_t>(problem.headdim), problem.out.data, problem.out.dtype,
                run.out_offset(block, i));
    }
    return;
  }
  const int64_t slots = dense_slots(block.rows);
  for (int64_t c = 0; c < problem.headdim; ++c) {
    const float* column = scratch.x + static_cast<size_t>(c) * kRows;
    for (int64_t slot = 0; slot < slots; ++slot) scratch.row[slot] = column[slot_key(slot)];
    store_row(scratch.row, static_cast<size_t>(slots), problem.out.data, problem.out.dtype,
              run.out_offset(block, 0) + c * problem.out.row_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "cpu/threads.h"

namespace tandem {

HWY_EXPORT(prepare_block);
HWY_EXPORT(store_block);

namespace {

float scale_for(float largest) {
  return std::max(largest / kE4m3Max, 0x1p-126f);
}

void quantize_in_one_pass(const QuantizeRun& run) {
  parallel_for(run.num_threads, run.block_count(), [&](int64_t index, int thread) {
    const QuantizeScratch scratch = run.scratch_of(thread);
    const RowBlock block = run.block_at(index);
    const float scale = scale_for(HWY_DYNAMIC_DISPATCH(prepare_block)(run, block, scratch));
    run.scale_of(block) = scale;
    HWY_DYNAMIC_DISPATCH(store_block)(run, block, scale, scratch);
  });
}

void quantize_in_two_passes(const QuantizeRun& run) {
  parallel_for(run.num_threads, run.block_count(), [&](int64_t index, int thread) {
    run.largest[index] = HWY_DYNAMIC_DISPATCH(prepare_block)(run, run.block_at(index), run.scratch_of(thread));
  });
  run.for_each_scale([](float& scale) { scale = 0; });
  for (int64_t index = 0; index < run.block_count(); ++index) {
    float& largest = run.scale_of(run.block_at(index));
    largest = std::max(largest, run.largest[index]);
  }
  run.for_each_scale([](float& scale) { scale = scale_for(scale); });
  parallel_for(run.num_threads, run.block_count(), [&](int64_t index, int thread) {
    const QuantizeScratch scratch = run.scratch_of(thread);
    const RowBlock block = run.block_at(index);
    HWY_DYNAMIC_DISPATCH(prepare_block)(run, block, scratch);
    HWY_DYNAMIC_DISPATCH(store_block)(run, block, run.scale_of(block), scratch);
  });
}

}  // namespace

uint64_t tiled_quantize_workspace_bytes(const QuantizeProblem& problem) {
  Arena arena(nullptr);
  lay_out_quantize(problem, resolve_num_threads(problem.exec.num_threads), arena);
  return arena.bytes();
}

void run_tiled_quantize(const QuantizeProblem& problem) {
  Arena arena(problem.exec.workspace);
  QuantizeRun run = lay_out_quantize(problem, resolve_num_threads(problem.exec.num_threads), arena);
  run.read_sequences();
  run.zero_gaps();
  if (run.each_block_has_its_scale()) {
    run.for_each_scale([](float& scale) { scale = scale_for(0); });  // of blocks without rows
    quantize_in_one_pass(run);
  } else {
    quantize_in_two_passes(run);
  }
}

}  // namespace tandem

#endif  // HWY_ONCE
