#pragma once

#include <cstdint>

#include "core/fp8.h"
#include "core/int_math.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/quantize/params.h"

// What a thread block of the quantising kernels works on: items, each 128 rows of one head, counted from the start of a
// sequence. Heads vary fastest, so that blocks side by side read memory side by side.
//
// A packed problem's items need no table: sequence s begins at block floor(offsets[s] / 128) + s, as V^T's slots begin
// (core/fp8.h), so that no two sequences share one, and the host can bound their number.
namespace tandem::sm90 {

// Where an item is: a block of a sequence.
struct BlockPlace {
  int64_t entry;       // of the batch: for strides; 0 in a packed problem
  int64_t sequence;    // for scales and rotary offsets; -1: rows of no sequence
  int64_t begin;       // the sequence's first row in the buffer
  int64_t first;       // row of the block in the sequence, and slot
  int64_t first_slot;  // of the sequence, in V^T
  int64_t slots;       // of the sequence
  int length;          // rows of the buffer that the sequence owns
  int used_length;     // of these, that count
};

// What the kernels need of it.
struct QuantizeItem {
  int64_t x;         // element of the block's first row, column 0
  int64_t out;       // the same; of V^T the block's first slot
  float* scale;      // nullptr: rows of no sequence
  int64_t position;  // of the first row in the rotary tables, not yet clamped
  int rows;          // of the block that are in the buffer
  int used;          // of these, that count
  int slots;         // of V^T that are to be written
  bool is_known;     // the scale lies in memory
  bool records;      // the block writes its scale
  bool has_work;     // in this pass
};

// n >= 0. Most numbers have 31 bits, and then a division is a multiplication.
TANDEM_DEVICE int64_t quotient(int64_t n, const Divisor& divisor) {
  if (n <= INT32_MAX) return divisor.quotient(static_cast<uint32_t>(n));
  return n / divisor.divisor;
}

TANDEM_DEVICE int used_of(const DeviceVector& seqused, int64_t sequence, int length) {
  if (seqused.data == nullptr) return length;
  return min_of(max_of(ptx::load_global(seqused.data + sequence * seqused.stride), 0), length);
}

TANDEM_DEVICE BlockPlace dense_place(const QuantizeParams& params, int64_t block_of_all) {
  BlockPlace place{};
  place.entry = quotient(block_of_all, params.blocks);
  place.sequence = place.entry;
  place.first = (block_of_all - place.entry * params.blocks.divisor) * kQuantizeRows;
  place.slots = dense_slots(int64_t{params.seqlen});
  place.length = params.seqlen;
  place.used_length = used_of(params.seqused, place.sequence, place.length);
  return place;
}

TANDEM_DEVICE int64_t first_block(const QuantizeParams& params, int64_t sequence) {
  return ptx::load_global(params.offsets + sequence) / kQuantizeRows + sequence;
}

// The last of the batch + 2 sequences that begins at the block or before it.
TANDEM_DEVICE int64_t sequence_of_block(const QuantizeParams& params, int64_t block_of_all) {
  int64_t low = 0;
  int64_t high = int64_t{params.batch} + 2;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (first_block(params, middle) <= block_of_all) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

TANDEM_DEVICE BlockPlace packed_place(const QuantizeParams& params, int64_t block_of_all) {
  const int64_t index = sequence_of_block(params, block_of_all);
  const int begin = ptx::load_global(params.offsets + index);
  const int end = ptx::load_global(params.offsets + index + 1);
  const bool is_sequence = 1 <= index && index <= params.batch;
  BlockPlace place{};
  place.sequence = is_sequence ? index - 1 : -1;
  place.begin = begin;
  place.first = (block_of_all - begin / kQuantizeRows - index) * kQuantizeRows;
  place.first_slot = index == 0 ? 0 : packed_slot_begin(int64_t{begin}, index - 1);
  place.slots = packed_slot_begin(int64_t{end}, min_of(index, int64_t{params.batch})) - place.first_slot;
  place.length = end - begin;
  place.used_length = is_sequence ? used_of(params.seqused, index - 1, place.length) : 0;
  return place;
}

// How much of `count` falls to the block that begins at `first`. Beyond the sequence's last block, nothing does.
TANDEM_DEVICE int cut_to_block(int64_t count, int64_t first) {
  return static_cast<int>(min_of(max_of(count - first, int64_t{0}), int64_t{kQuantizeRows}));
}

TANDEM_DEVICE float* scale_at(const Scales& scale, int64_t batch, int64_t head, int64_t block) {
  return static_cast<float*>(scale.data) + batch * scale.batch_stride + head * scale.head_stride +
         block * scale.block_stride;
}

// What is to be done about the block's scale. Blocks of a sequence share the last one of the caller's axis, if that is
// too short for the sequence.
TANDEM_DEVICE void set_scale(const QuantizeParams& params, const BlockPlace& place, int64_t head, QuantizeItem& item) {
  const int64_t block = place.first / kQuantizeRows;
  const bool is_shared =
      !params.scale_per_block ||
      (block >= params.last_scale && ceil_div(place.used_length, kQuantizeRows) - 1 > params.last_scale);
  item.scale = nullptr;
  if (place.sequence >= 0) item.scale = scale_at(params.scale, place.sequence, head, min_of(block, params.last_scale));
  item.is_known = is_shared && params.pass != QuantizePass::kLargest;
  item.records = item.scale != nullptr && (is_shared || block <= params.last_scale);
  if (params.pass == QuantizePass::kLargest) {
    item.has_work = item.used > 0 && is_shared;
  } else {
    item.has_work = params.transposed ? item.slots > 0 : item.rows > 0;
  }
}

TANDEM_DEVICE QuantizeItem make_item(const QuantizeParams& params, const BlockPlace& place, int64_t head) {
  const int64_t row = place.begin + place.first;
  QuantizeItem item{};
  item.x = place.entry * params.x.batch_stride + head * params.x.head_stride + row * params.x.row_stride;
  item.out = place.entry * params.out.batch_stride + head * params.out.head_stride +
             (params.transposed ? place.first_slot + place.first : row * params.out.row_stride);
  item.rows = cut_to_block(place.length, place.first);
  item.used = cut_to_block(place.used_length, place.first);
  item.slots = cut_to_block(place.slots, place.first);
  item.position = place.first;
  if (params.rotary_offset.data != nullptr && item.used > 0) {
    item.position += ptx::load_global(params.rotary_offset.data + place.sequence * params.rotary_offset.stride);
  }
  set_scale(params, place, head, item);
  return item;
}

TANDEM_DEVICE QuantizeItem find_item(const QuantizeParams& params, int64_t index) {
  const int64_t block_of_all = quotient(index, params.nheads);
  const int64_t head = index - block_of_all * params.nheads.divisor;
  const BlockPlace place =
      params.offsets == nullptr ? dense_place(params, block_of_all) : packed_place(params, block_of_all);
  return make_item(params, place, head);
}

// Row of the rotary tables for row `row` of the block.
TANDEM_DEVICE int64_t table_position(const QuantizeParams& params, const QuantizeItem& item, int row) {
  return min_of(max_of(item.position + row, int64_t{0}), int64_t{params.positions} - 1);
}

}  // namespace tandem::sm90
