#pragma once

#include "sm90/backward/params.h"

namespace tandem::sm90 {

// Parameter of the kernel that plans the tiles of the backward kernel.
struct KeyBlockParams {
  BackwardParams problem;
  KeyBlockRecord* records = nullptr;
  bool heads_differ = false;  // in their interval arrays
  int block_m = 0;
  int block_n = 0;  // at most 128
  int dense_key_blocks = 0;
  int dense_m_blocks = 0;  // of each sequence
};

}  // namespace tandem::sm90
