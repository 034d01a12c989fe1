#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"

// Blocks of one cluster. PTX: Special Registers: %cluster_ctarank; barrier.cluster, mapa (7.8).
namespace tandem::sm90::ptx {

// This block's number in its cluster; 0 where the launch has no clusters.
TANDEM_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// barrier.cluster.arrive.release and .wait.acquire: over all threads of all blocks of the cluster. Each thread calls
// both, in turn; writes before an arrive, shared memory of other blocks included, are seen after the wait. A block must
// not leave while others may still reach its shared memory: end with both.
TANDEM_DEVICE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
TANDEM_DEVICE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// mapa.shared::cluster: the cluster-window address of the place in block `rank` that `address` is in this one. For
// store_cluster_shared(); the mbarrier and TMA functions map by themselves.
TANDEM_DEVICE uint32_t map_shared(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// st.shared::cluster (7.8): 4 bytes to a mapped address.
TANDEM_DEVICE void store_cluster_shared(uint32_t mapped, uint32_t value) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(mapped), "r"(value) : "memory");
}

}  // namespace tandem::sm90::ptx
