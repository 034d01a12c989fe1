#pragma once

#include <cmath>

#include "core/problem.h"
#include "sm90/merge/columns.cuh"
#include "sm90/merge/plan.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/math.cuh"

// Joins partial results of attention over disjoint sets of keys:
//
//     LSE = log(sum_n exp(LSE_n) + exp(sink))          O = sum_n exp(LSE_n - LSE) O_n
//
// Bound by memory: each O_n is read once and O written once, by threads that know nothing of each other. All threads of
// a row work out its weights, from statistics that the L1 holds.
namespace tandem::sm90 {

struct MergeRow {
  int64_t batch;
  int64_t head;
  int64_t row;
};

// What the statistics of a row say. A part with LSE -inf is empty.
struct MergeWeights {
  int64_t parts = 0;      // that are not empty,
  int64_t last = 0;       // and the last of them
  float max = -INFINITY;  // of the LSEs and the sink
  float inverse_sum = 0;  // of exp(LSE_n - max), sink included
  float lse = -INFINITY;  // of the result
};

TANDEM_DEVICE int64_t element_of(const Tensor& tensor, const MergeRow& at) {
  return at.batch * tensor.batch_stride + at.row * tensor.row_stride + at.head * tensor.head_stride;
}
TANDEM_DEVICE int64_t element_of(const RowTensor& tensor, const MergeRow& at) {
  return at.batch * tensor.batch_stride + at.row * tensor.row_stride + at.head * tensor.head_stride;
}

TANDEM_DEVICE float part_lse(const MergeProblem& p, int64_t part, const MergeRow& at) {
  const auto* lse = static_cast<const float*>(p.lse_partial.data);
  return ptx::load_global(lse + part * p.lse_part_stride + element_of(p.lse_partial, at));
}

// e^x, of the difference of two LSEs: relative error 2^-21 where the result matters.
TANDEM_DEVICE float exp_of(float difference) {
  constexpr float kLog2E = 1.44269504f;
  return ptx::ex2(ptx::mul(difference, kLog2E));
}

TANDEM_DEVICE void sum_weights(const MergeProblem& p, const MergeRow& at, float sink, MergeWeights& weights) {
  constexpr float kLn2 = 0.693147181f;
  float sum = exp_of(sink - weights.max);
  for (int64_t n = 0; n < p.parts; ++n) {
    const float lse = part_lse(p, n, at);
    if (lse != -INFINITY) sum += exp_of(lse - weights.max);
  }
  weights.inverse_sum = ptx::rcp(sum);
  weights.lse = sum == 1.0f ? weights.max : ptx::fma(ptx::lg2(sum), kLn2, weights.max);
}

// NaN in any part's LSE, or two that are +inf, give NaN.
TANDEM_DEVICE MergeWeights merge_weights(const MergeProblem& p, const MergeRow& at) {
  float sink = -INFINITY;
  if (p.sink.dtype != DType::kNone) {
    sink = ptx::load_global(static_cast<const float*>(p.sink.data) + at.head * p.sink.stride);
  }
  MergeWeights weights;
  weights.max = sink;
  for (int64_t n = 0; n < p.parts; ++n) {
    const float lse = part_lse(p, n, at);
    if (lse == -INFINITY) continue;
    ++weights.parts;
    weights.last = n;
    weights.max = ptx::max(weights.max, lse);
  }
  if (weights.parts == 0) {
    weights.lse = sink;
  } else if (weights.parts == 1 && p.sink.dtype == DType::kNone) {
    weights.lse = part_lse(p, weights.last, at);
  } else {
    sum_weights(p, at, sink, weights);
  }
  return weights;
}

template <int kColumns>
TANDEM_DEVICE void merge_parts(const MergeProblem& p, const MergeRow& at, int64_t column, const MergeWeights& weights) {
  float sums[kColumns] = {};
  for (int64_t n = 0; n < p.parts && weights.parts > 0; ++n) {
    const float lse = part_lse(p, n, at);
    if (lse == -INFINITY) continue;
    const float weight = ptx::mul(exp_of(lse - weights.max), weights.inverse_sum);
    float values[kColumns];
    load_columns(p.out_partial, n * p.out_part_stride + element_of(p.out_partial, at) + column, values);
    TANDEM_UNROLL
    for (int i = 0; i < kColumns; ++i) sums[i] = ptx::fma(weight, values[i], sums[i]);
  }
  store_columns(p.out, element_of(p.out, at) + column, sums);
}

// One part that is not empty, and no sink: no arithmetic.
template <int kColumns>
TANDEM_DEVICE void take_part(const MergeProblem& p, const MergeRow& at, int64_t column, int64_t part) {
  const int64_t from = part * p.out_part_stride + element_of(p.out_partial, at) + column;
  const int64_t to = element_of(p.out, at) + column;
  if (p.out.dtype == p.out_partial.dtype) {
    copy_columns<kColumns>(p.out_partial, from, p.out, to);
  } else {
    float values[kColumns];
    load_columns(p.out_partial, from, values);
    store_columns(p.out, to, values);
  }
}

template <int kColumns>
TANDEM_DEVICE void merge_run(const MergeProblem& p, const MergeRow& at, int64_t column) {
  const MergeWeights weights = merge_weights(p, at);
  if (column == 0 && p.lse.dtype != DType::kNone) {
    ptx::store_global(static_cast<float*>(p.lse.data) + element_of(p.lse, at), weights.lse);
  }
  if (weights.parts == 1 && p.sink.dtype == DType::kNone) {
    take_part<kColumns>(p, at, column, weights.last);
  } else {
    merge_parts<kColumns>(p, at, column, weights);
  }
}

template <int kColumns>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kMergeThreads, 1)
    merge_kernel(const TANDEM_GRID_CONSTANT MergeProblem p, const TANDEM_GRID_CONSTANT int64_t runs) {
  const int64_t runs_of_a_row = p.headdim_v / kColumns;
  const int64_t first = int64_t{ptx::block_index()} * kMergeThreads + ptx::thread_rank();
  const int64_t step = int64_t{ptx::grid_size()} * kMergeThreads;
  for (int64_t run = first; run < runs; run += step) {
    const int64_t row_of_all = run / runs_of_a_row;  // (batch, row, head)
    const int64_t row_of_batch = row_of_all / p.nheads;
    const MergeRow at = {row_of_batch / p.rows, row_of_all % p.nheads, row_of_batch % p.rows};
    merge_run<kColumns>(p, at, run % runs_of_a_row * kColumns);
  }
}

}  // namespace tandem::sm90
