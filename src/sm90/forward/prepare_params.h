#pragma once

#include "sm90/forward/params.h"
#include "sm90/packed_lengths.h"

namespace tandem::sm90 {

// The preparing kernel's parameter.
struct PrepareParams {
  PackedLengths lengths;
  int block_m = 0;
  ForwardWorkspace* workspace = nullptr;
  PackedSequence* sequences = nullptr;  // batch + 2
};

}  // namespace tandem::sm90
