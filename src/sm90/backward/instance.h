#pragma once

#include "core/dtype.h"

namespace tandem::sm90 {

// One compiled backward kernel, as the CUDA runtime takes it.
struct BackwardInstance {
  const void* kernel;
  int threads;
  int smem_bytes;
};

// The arguments are those of BackwardTraits. Each is defined in a translation unit of its own, made of
// instance.cu.in.
template <typename Element, int kRow, bool kGeneral>
BackwardInstance backward_instance();

}  // namespace tandem::sm90
