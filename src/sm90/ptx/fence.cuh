#pragma once

#include "sm90/ptx/device.cuh"

// Fences of the calling thread: they order its own accesses, before against after. To hand data to another thread, a
// barrier or a flag must follow. PTX: Parallel Synchronization and Communication Instructions: fence / membar.
namespace tandem::sm90::ptx {

// fence.proxy.async.shared::cta (8.0): makes this thread's ordinary accesses of shared memory visible to the async
// proxy (TMA, and wgmma's reads through descriptors). By each thread that wrote (st.shared, stmatrix), after its last
// write, before the barrier after which the async operation is issued.
TANDEM_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// fence.proxy.async (8.0): the same for shared and global memory, such as a buffer that threads have written and a
// tensor map's load will read.
TANDEM_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// fence.acq_rel.cta, .gpu (6.0): __threadfence_block(), __threadfence().
TANDEM_DEVICE void fence_block() {
  asm volatile("fence.acq_rel.cta;" ::: "memory");
}
TANDEM_DEVICE void fence_gpu() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

}  // namespace tandem::sm90::ptx
