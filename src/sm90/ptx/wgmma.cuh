#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/wgmma_generated.cuh"

// The order of asynchronous matrix products. All 128 threads of a warpgroup (four warps, the first a multiple of four)
// call each function together. One batch:
//
//   wgmma_fence();                                      // earlier register and shared-memory writes come first
//   Wgmma<Bf16, 128>::ss<Major::kK, Major::kK>(...);    // any number, onto the same or other accumulators
//   wgmma_commit();                                     // they are a group
//   ...                                                 // HAZARD: touch neither accumulators nor A fragments here
//   wgmma_wait<0>(); wgmma_fence_operand(acc);          // the group is done
//
// Writes of shared memory by threads need fence_proxy_async_shared() and a barrier before; those of TMA the wait on
// their mbarrier. PTX: Asynchronous Warpgroup Level Matrix Instructions (8.0, sm_90a).
namespace tandem::sm90::ptx {

// wgmma.fence: orders this warpgroup's accesses of registers (accumulators, A fragments) before the wgmmas that follow.
// Needed before the first wgmma, and whenever ordinary code has written such a register since.
TANDEM_DEVICE void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// wgmma.commit_group: the wgmmas since the last commit become one group.
TANDEM_DEVICE void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// wgmma.wait_group: until at most the kPending latest groups are still under way.
template <int kPending>
TANDEM_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// No instruction: tells the compiler that the registers change here, so that it moves no access of the accumulators of
// a finished group above the wait. After the wgmma_wait() that ends the group.
template <int kRegisters>
TANDEM_DEVICE void wgmma_fence_operand(float (&accumulators)[kRegisters]) {
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}
template <int kRegisters>
TANDEM_DEVICE void wgmma_fence_operand(uint32_t (&fragment)[kRegisters]) {
  TANDEM_UNROLL
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+r"(fragment[i])::"memory");
}

}  // namespace tandem::sm90::ptx
