#pragma once

#include "core/dtype.h"
#include "sm90/backward/params.h"

namespace tandem::sm90 {

// One compiled backward kernel, and what its launch needs.
struct BackwardInstance {
  void (*kernel)(BackwardParams);
  int threads;
  int smem_bytes;
};

// The arguments are those of BackwardTraits. Each is defined in a translation unit of its own, made of
// instance.cu.in.
template <typename Element, int kRow, bool kGeneral>
BackwardInstance backward_instance();

}  // namespace tandem::sm90
