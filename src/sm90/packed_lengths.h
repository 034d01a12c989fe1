#pragma once

#include <cstdint>

namespace tandem::sm90 {

// A vector of the caller's in device memory; data nullptr: absent.
struct DeviceVector {
  const int* data = nullptr;
  int64_t stride = 1;
};

// What the caller says of a packed problem's sequences, for the kernels that prepare it.
struct PackedLengths {
  DeviceVector cu_seqlens_q, cu_seqlens_k;  // batch + 1
  DeviceVector seqused_q, seqused_k;        // batch
  int batch = 0;
  int total_q = 0;
  int total_k = 0;
};

}  // namespace tandem::sm90
