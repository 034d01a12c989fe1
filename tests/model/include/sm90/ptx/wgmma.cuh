#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/wgmma_generated.cuh"

namespace tandem::sm90::ptx {

inline void wgmma_fence(Site site = Site::here()) {
  model::wgmma_fence(site);
}
inline void wgmma_commit(Site site = Site::here()) {
  model::wgmma_commit(site);
}
template <int kPending>
inline void wgmma_wait(Site site = Site::here()) {
  model::wgmma_wait(kPending, site);
}

// The compiler cannot move accesses over calls of the model, to which the registers' addresses are known.
template <int kRegisters>
inline void wgmma_fence_operand(float (&)[kRegisters]) {}
template <int kRegisters>
inline void wgmma_fence_operand(uint32_t (&)[kRegisters]) {}

}  // namespace tandem::sm90::ptx
