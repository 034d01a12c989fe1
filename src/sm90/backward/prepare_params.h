#pragma once

#include "sm90/backward/params.h"
#include "sm90/packed_lengths.h"

namespace tandem::sm90 {

// The parameter of the kernel that prepares a packed problem's backward.
struct PrepareBackwardParams {
  PackedLengths lengths;
  int block_m = 0;
  int block_n = 0;
  BackwardWorkspace* workspace = nullptr;
  BackwardSequence* sequences = nullptr;  // batch + 2
};

}  // namespace tandem::sm90
