#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/warp.cuh"

// Rings of stages in shared memory between a producer and consumers. Each stage has two mbarriers: *_full (the data is
// there) and *_empty (the stage is free); `barriers` is the address of the first stage's. docs/HOPPER.md draws phases.
namespace tandem::sm90 {

// Where one side stands in a ring: the stage, and the parity of the phase that this pass over the ring completes.
template <int kStages>
struct PipelineState {
  int index = 0;
  uint32_t phase = 0;
  TANDEM_DEVICE void advance() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }
  // By kSteps <= kStages.
  template <int kSteps>
  TANDEM_DEVICE void advance_by() {
    static_assert(kSteps <= kStages);
    index += kSteps;
    if (index >= kStages) {
      index -= kStages;
      phase ^= 1;
    }
  }
};

TANDEM_DEVICE uint32_t barrier_at(uint32_t barriers, int index) {
  return barriers + static_cast<uint32_t>(index) * ptx::kMbarrierBytes;
}

// Consumer: until the data of this pass has come.
template <int kStages>
TANDEM_DEVICE void wait(uint32_t full, PipelineState<kStages> state) {
  ptx::mbarrier_wait(barrier_at(full, state.index), state.phase);
}

// Producer: until the stage is free. On the first pass it is: nothing has been released, and the parity that precedes
// phase 0 counts as completed.
template <int kStages>
TANDEM_DEVICE void acquire(uint32_t empty, PipelineState<kStages> state) {
  ptx::mbarrier_wait(barrier_at(empty, state.index), state.phase ^ 1);
}

// Consumer, a whole warp: done with the stage. One arrival a warp.
template <int kStages>
TANDEM_DEVICE void release(uint32_t empty, PipelineState<kStages> state) {
  ptx::warp_sync();
  ptx::mbarrier_arrive_if(barrier_at(empty, state.index), ptx::lane_index() == 0);
}

}  // namespace tandem::sm90
