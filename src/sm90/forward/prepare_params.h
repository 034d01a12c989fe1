#pragma once

#include <cstdint>

#include "sm90/forward/params.h"

namespace tandem::sm90 {

// A vector of the caller's in device memory; data nullptr: absent.
struct DeviceVector {
  const int* data = nullptr;
  int64_t stride = 1;
};

// The preparing kernel's parameter: what the caller says of a packed problem's sequences.
struct PrepareParams {
  DeviceVector cu_seqlens_q, cu_seqlens_k;  // batch + 1
  DeviceVector seqused_q, seqused_k;        // batch
  int batch = 0;
  int total_q = 0;
  int total_k = 0;
  int block_m = 0;
  ForwardWorkspace* workspace = nullptr;
  PackedSequence* sequences = nullptr;  // batch + 2
};

}  // namespace tandem::sm90
