#pragma once

#include <cstdint>

#include "tandem/tandem.h"

#ifdef __CUDACC__
#define TANDEM_TEST_HD __host__ __device__
#else
#define TANDEM_TEST_HD
#endif

// A problem in device memory, as the tests' kernels see it: those that fill the inputs and those that compute the right
// values.
namespace tandem::gpu_test {

// Where a tensor of (batch, rows, heads, columns) lies in its buffer; packed: batch is 1. What of the buffer is none of
// its elements, before, between and after the entries of the batch, is guard.
struct Placement {
  int64_t batch = 0, rows = 0, heads = 0, columns = 0;
  int64_t first = 0;  // element (0, 0, 0, 0)
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  int64_t elements = 0;  // of the buffer

  TANDEM_TEST_HD int64_t at(int64_t b, int64_t row, int64_t head) const {
    return first + b * batch_stride + row * row_stride + head * head_stride;
  }
};

// Of one element of a buffer; batch is -1 in the guard.
struct Coordinates {
  int64_t batch = -1, row = 0, head = 0, column = 0;
};

TANDEM_TEST_HD inline Coordinates locate(const Placement& place, int64_t element) {
  const int64_t offset = element - place.first;
  if (offset < 0 || place.batch_stride == 0 || offset >= place.batch * place.batch_stride) return {};
  const int64_t inside = offset % place.batch_stride;
  const bool by_head = place.head_stride > place.row_stride;
  const int64_t outer_stride = by_head ? place.head_stride : place.row_stride;
  const int64_t inner_stride = by_head ? place.row_stride : place.head_stride;
  const int64_t outer = inside / outer_stride;
  const int64_t inner = inside % outer_stride / inner_stride;
  const int64_t column = inside % outer_stride % inner_stride;
  const int64_t row = by_head ? inner : outer;
  const int64_t head = by_head ? outer : inner;
  if (row >= place.rows || head >= place.heads || column >= place.columns) return {};
  return {offset / place.batch_stride, row, head, column};
}

// A sequence's rows and keys, in rows of the entry of the batch that holds it.
struct SequenceRange {
  int64_t q_begin, q_len, k_begin, k_len;
};

struct IntervalView {
  const int32_t* values = nullptr;  // nullptr: absent
  int64_t batch_stride = 0, head_stride = 0;
};

// Of fp8: (batch, heads, blocks of 128 rows); axes that are not there have stride 0.
struct ScaleView {
  const float* values = nullptr;  // nullptr: all are 1
  int64_t batch_stride = 0, head_stride = 0;
  int64_t heads_per_scale = 1, blocks = 1;

  TANDEM_TEST_HD double at(int64_t sequence, int64_t head, int64_t row) const {
    if (values == nullptr) return 1;
    const int64_t block = row / 128 < blocks ? row / 128 : blocks - 1;
    return values[sequence * batch_stride + head / heads_per_scale * head_stride + block];
  }
};

struct DeviceView {
  bool packed = false;
  int64_t batch = 0;  // sequences
  int64_t nheads_q = 0, nheads_k = 0, headdim = 0, headdim_v = 0;
  int64_t longest_k = 0;
  int32_t dtype = TANDEM_BF16, out_dtype = TANDEM_BF16;
  const SequenceRange* sequences = nullptr;
  bool causal = false, top_left = false;
  int64_t window_left = -1, window_right = -1, attention_chunk = 0;
  IntervalView lo, hi;
  const float* sink = nullptr;  // nullptr: absent
  double scale = 1, softcap = 0;

  void *q = nullptr, *k = nullptr, *v = nullptr;  // of dtype
  void* out = nullptr;
  float* lse = nullptr;
  Placement q_at, k_at, v_at, out_at;
  ScaleView q_scale, k_scale, v_scale;

  // Of the backward: dout lies as out does, dlse as lse, and gradients as what they are the gradients of.
  uint16_t* dout = nullptr;
  float* dlse = nullptr;  // nullptr: absent
  uint16_t *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float* dsink = nullptr;  // nullptr: absent

  TANDEM_TEST_HD int64_t rows_q() const { return q_at.batch * q_at.rows; }
  TANDEM_TEST_HD int64_t rows_k() const { return k_at.batch * k_at.rows; }
  TANDEM_TEST_HD int64_t lse_index(int64_t row, int64_t head) const {  // row: of rows_q()
    return (row / q_at.rows * nheads_q + head) * q_at.rows + row % q_at.rows;
  }
};

// A row or key of the buffers: its sequence, and its number in it; sequence is -1 for one that belongs to none.
struct RowPlace {
  int64_t sequence = -1;
  int64_t position = 0;
};

// `row`: of rows_q(), or with `of_keys` of rows_k().
TANDEM_TEST_HD inline RowPlace place_of_row(const DeviceView& view, int64_t row, bool of_keys) {
  int64_t sequence = 0;
  int64_t in_entry = row;
  if (view.packed) {  // the last sequence that begins at or before the row: of those at one place only it can have rows
    int64_t low = 0, high = view.batch;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      const SequenceRange& range = view.sequences[middle];
      ((of_keys ? range.k_begin : range.q_begin) <= row ? low : high) = middle;
    }
    sequence = low;
  } else {
    const int64_t rows = of_keys ? view.k_at.rows : view.q_at.rows;
    sequence = row / rows;
    in_entry = row % rows;
  }
  if (sequence >= view.batch) return {};
  const SequenceRange& range = view.sequences[sequence];
  const int64_t position = in_entry - (of_keys ? range.k_begin : range.q_begin);
  if (position < 0 || position >= (of_keys ? range.k_len : range.q_len)) return {};
  return {sequence, position};
}

// The contract's rule [3, 4], restated: does row i of head h of a sequence see key j?
TANDEM_TEST_HD inline bool sees(const DeviceView& view, int64_t sequence, int64_t h, int64_t i, int64_t j) {
  const SequenceRange& range = view.sequences[sequence];
  const int64_t position = i + (view.top_left ? 0 : range.k_len - range.q_len);
  if (view.causal && j > position) return false;
  if (view.window_left >= 0 && position - j > view.window_left) return false;
  if (view.window_right >= 0 && j - position > view.window_right) return false;
  if (view.attention_chunk > 0 && (position < 0 || j / view.attention_chunk != position / view.attention_chunk)) {
    return false;
  }
  const int64_t entry = view.packed ? 0 : sequence;
  const int64_t row = i + (view.packed ? range.q_begin : 0);
  const auto bound = [&](const IntervalView& interval) {
    return interval.values[entry * interval.batch_stride + h * interval.head_stride + row];
  };
  if (view.lo.values != nullptr && j < bound(view.lo)) return false;
  if (view.hi.values != nullptr && j >= bound(view.hi)) return false;
  return true;
}

}  // namespace tandem::gpu_test
