#pragma once

#include "sm90/ptx/device.cuh"

// Barriers 0 to 15 of a block, by number. Arrivals count whole warps: all 32 threads call together. `threads`, a
// multiple of 32, is the sum over those that sync and those that only arrive; all must name the same. What arrivers and
// syncers have written to shared memory before is seen by those that sync, after. PTX: Parallel Synchronization and
// Communication Instructions: barrier / bar (barrier.sync: 6.0).
namespace tandem::sm90::ptx {

// Barrier 0 over the whole block: __syncthreads().
TANDEM_DEVICE void block_sync() {
  asm volatile("barrier.sync.aligned 0;" ::: "memory");
}

// barrier.sync: arrive and wait.
TANDEM_DEVICE void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// barrier.arrive: arrive and go on.
TANDEM_DEVICE void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tandem::sm90::ptx
