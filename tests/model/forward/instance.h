#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "engine/names.h"
#include "sm90/forward/params.h"

namespace tandem::model {

// One instance of the forward kernel, as the model launches it.
struct ForwardInstance {
  int threads;
  uint32_t shared_bytes;
  void (*kernel)(const sm90::ForwardParams& params);
  void (*name_everything)(Names& names);  // by the barrier table of sm90/forward/traits.h
};

// kRow and kGeneral: of sm90::ForwardTraits; dtype: bf16 or fp16. instance.cpp is compiled once for each of both.
template <int kRow, bool kGeneral>
ForwardInstance forward_instance(DType dtype);
// In e4m3, whose rows are others.
template <int kRow, bool kGeneral>
ForwardInstance fp8_forward_instance(bool transposes);

}  // namespace tandem::model
