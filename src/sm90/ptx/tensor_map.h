#pragma once

#include <cstdint>

namespace tandem::sm90::ptx {

// A CUtensorMap: the copy engine's description of a tensor, of its boxes and their swizzle. Opaque: sm90/tensor_map.cpp
// writes it. Passed to kernels by value, in a TANDEM_GRID_CONSTANT parameter (param space keeps the alignment).
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

}  // namespace tandem::sm90::ptx
