#pragma once

#include <cstdint>

#include "core/divisor.h"
#include "core/fp8.h"
#include "core/problem.h"
#include "sm90/packed_lengths.h"

namespace tandem::sm90 {

constexpr int kQuantizeRows = static_cast<int>(kScaleBlockRows);  // of a block
constexpr int kSignWords = 8;                                     // of 32 columns each

// What a launch of a quantising kernel does with each block.
enum class QuantizePass : int {
  kWhole,    // finds the scale and rounds; where several blocks of a sequence share one, the launch before has found it
  kLargest,  // only joins the scale that the block asks for with those of other blocks
  kRound,    // rounds, by scales that the launch before has found
};

// The parameter of every quantising kernel: a problem without what only the host looks at.
struct QuantizeParams {
  QuantizePass pass = QuantizePass::kWhole;
  bool scale_per_block = false;
  bool transposed = false;
  int headdim = 0;
  int batch = 0;
  int seqlen = 0;                // dense
  int total = 0;                 // packed
  Divisor nheads;                // of items and of dense blocks: below
  Divisor blocks;                // dense: of each entry of the batch
  int64_t items = 0;             // blocks times heads; packed: at most so many
  const int* offsets = nullptr;  // packed: batch + 3, as QuantizeOffsets says; nullptr: dense
  DeviceVector seqused;

  Tensor x;
  Tensor out;  // transposed: row_stride steps over columns
  Scales scale;
  int64_t last_scale = 0;  // of the caller's axis of blocks

  RotaryTable cos, sin;
  int positions = 0;
  int pairs = 0;  // 0: no rotary embedding
  bool interleaved = false;
  DeviceVector rotary_offset;

  bool rotate = false;
  float rotation_factor = 1;           // 1 / sqrt(headdim)
  uint32_t negative[kSignWords] = {};  // bit c % 32 of word c / 32: column c changes its sign
};

// The parameter of the kernel before them.
struct PrepareQuantizeParams {
  // Packed: offsets[1 + b] becomes cu_seqlens[b], no smaller than any before and within [0, total]; offsets[0] is 0 and
  // the last, number batch + 2, the total. So sequence 0 of the kernels is what lies before the first offset, sequence
  // batch + 1 what lies after the last. nullptr: dense.
  int* offsets = nullptr;
  DeviceVector cu_seqlens;
  int batch = 0;
  int total = 0;
  // Scales that are set to the smallest; 0: none.
  Scales scale;
  int64_t scales = 0;
  Divisor nheads, blocks;  // of an entry of the batch; of a head
};

}  // namespace tandem::sm90
