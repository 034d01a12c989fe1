#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/status.h"
#include "sm90/tile/smem_layout.cuh"

namespace tandem::sm90 {

// What a tensor map describes: a tensor in global memory, axis 0 contiguous, and the box that one load or store moves.
// Elements outside the tensor are read as zero and not written. A value without behaviour: kernels' launchers encode it
// for the hardware, tests and the host model read it as it stands.
struct TensorMapSpec {
  static constexpr int kMaxRank = 5;
  const void* base = nullptr;
  DType dtype = DType::kNone;  // fp16, bf16, fp32, e4m3 or e5m2
  int rank = 0;
  int64_t dims[kMaxRank] = {};           // elements
  int64_t strides_bytes[kMaxRank] = {};  // of axes 1 .. rank - 1; [0] is not used
  int32_t box[kMaxRank] = {};            // elements; box[0] is one row of the swizzle
  Swizzle swizzle = Swizzle::k128Bytes;
};

// What the hardware asks of a map, in words.
Status check_tensor_map(const TensorMapSpec& spec);

}  // namespace tandem::sm90
