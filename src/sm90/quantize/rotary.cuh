#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/quantize/chunks.cuh"
#include "sm90/quantize/work.cuh"

// The rotary embedding of a chunk of 8 columns. The columns that these turn with lie in the same chunk, or in one that
// some thread reads as its own: it comes from the L1.
namespace tandem::sm90 {

struct alignas(16) FourFloats {
  float value[4];
};
struct alignas(8) FourHalves {
  uint32_t word[2];
};

// 4 entries of a row of the table.
template <typename Element>
TANDEM_DEVICE void load_table(const RotaryTable& table, int64_t position, int pair, float (&values)[4]) {
  const int64_t element = position * table.position_stride + pair;
  if (table.dtype == DType::kFp32) {
    const auto* const source = static_cast<const float*>(table.data) + element;
    const auto four = ptx::load_global(reinterpret_cast<const FourFloats*>(source));
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) values[i] = four.value[i];
  } else {
    const auto* const source = static_cast<const uint16_t*>(table.data) + element;
    const auto four = ptx::load_global(reinterpret_cast<const FourHalves*>(source));
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      values[2 * i] = low_half<Element>(four.word[i]);
      values[2 * i + 1] = high_half<Element>(four.word[i]);
    }
  }
}

// Columns (0, 1), (2, 3) ... turn.
template <typename Element>
TANDEM_DEVICE void turn_neighbours(const QuantizeParams& params, int64_t position, int column, float* values) {
  float cos[4], sin[4];
  load_table<Element>(params.cos, position, column / 2, cos);
  load_table<Element>(params.sin, position, column / 2, sin);
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float a = values[2 * i];
    const float b = values[2 * i + 1];
    values[2 * i] = a * cos[i] - b * sin[i];
    values[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

// Column c turns with column c + pairs.
template <typename Element>
TANDEM_DEVICE void turn_halves(const QuantizeParams& params, const QuantizeItem& item, int row, int64_t position,
                               int column, float* values) {
  const bool is_first = column < params.pairs;
  const int pair = is_first ? column : column - params.pairs;
  const int other_column = is_first ? column + params.pairs : pair;
  const Chunk others = load_chunk(params.x, item.x + row * params.x.row_stride + other_column);
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    float cos[4], sin[4];
    load_table<Element>(params.cos, position, pair + 4 * half, cos);
    load_table<Element>(params.sin, position, pair + 4 * half, sin);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = others.word[2 * half + i / 2];
      const float other = i % 2 == 0 ? low_half<Element>(word) : high_half<Element>(word);
      float& value = values[4 * half + i];
      value = value * cos[i] + other * (is_first ? -sin[i] : sin[i]);
    }
  }
}

// `row` counts.
template <typename Element>
TANDEM_DEVICE void turn_chunk(const QuantizeParams& params, const QuantizeItem& item, int row, int column,
                              float* values) {
  if (column >= 2 * params.pairs) return;
  const int64_t position = table_position(params, item, row);
  if (params.interleaved) {
    turn_neighbours<Element>(params, position, column, values);
  } else {
    turn_halves<Element>(params, item, row, position, column, values);
  }
}

}  // namespace tandem::sm90
