#pragma once

#include <cstdint>

#include "core/fp8.h"
#include "core/int_math.h"
#include "sm90/forward/params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"

namespace tandem::sm90 {

// The factor of row `row` of a sequence.
TANDEM_DEVICE float block_scale(const BlockScales& scales, int sequence, int head, int row) {
  if (scales.data == nullptr) return 1.0f;
  const int block = min_of(row / static_cast<int>(kScaleBlockRows), scales.last_block);
  const int scale_head = static_cast<int>(scales.heads_per_scale.quotient(static_cast<uint32_t>(head)));
  return ptx::load_global(scales.data + sequence * scales.batch_stride + scale_head * scales.head_stride +
                          block * scales.block_stride);
}

// Address of a stage's.
TANDEM_DEVICE uint32_t scale_at(uint32_t scales, int stage) {
  return scales + static_cast<uint32_t>(stage) * 4;
}

}  // namespace tandem::sm90
