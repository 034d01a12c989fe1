#pragma once

#include "core/dtype.h"

namespace tandem::sm90 {

// One compiled forward kernel, as the CUDA runtime takes it.
struct ForwardInstance {
  const void* kernel;
  int threads;
  int smem_bytes;
};

// The arguments are those of ForwardTraits. Each is defined in a translation unit of its own, made of
// instance.cu.in.
template <typename Element, int kRow, bool kGeneral, bool kTransposes = false>
ForwardInstance forward_instance();

}  // namespace tandem::sm90
