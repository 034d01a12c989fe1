#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "engine/names.h"
#include "sm90/backward/params.h"

namespace tandem::model {

// One instance of the backward kernel, as the model launches it.
struct BackwardInstance {
  int threads = 0;
  uint32_t shared_bytes = 0;
  void (*kernel)(const sm90::BackwardParams& params) = nullptr;  // nullptr: there is no such instance
  void (*name_everything)(Names& names) = nullptr;               // by the barrier table of sm90/backward/traits.h
};

// kRow and kGeneral: of sm90::BackwardTraits; dtype: bf16 or fp16. instance.cpp is compiled once for each of both.
template <int kRow, bool kGeneral>
BackwardInstance backward_instance(DType dtype);

}  // namespace tandem::model
