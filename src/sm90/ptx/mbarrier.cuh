#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"

// mbarrier: a barrier object of 8 bytes in shared memory (8-byte aligned) with phases and a count of bytes under way.
// A phase completes when the arrivals and the expected bytes it waits for are both down to zero; the next one begins
// at once, with the full arrival count. docs/HOPPER.md draws it.
//
// `barrier` is an address in the shared window of this block. PTX: Parallel Synchronization and Communication
// Instructions: mbarrier.
namespace tandem::sm90::ptx {

constexpr int kMbarrierBytes = 8;

// mbarrier.init (7.0). One thread, once, before anyone uses the barrier. Visible to the copy engine and other blocks
// of the cluster after fence_mbarrier_init(), to the threads of this block after a block_sync().
TANDEM_DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// fence.mbarrier_init.release.cluster (8.0). By the thread that initialized, after its last mbarrier_init(), before the
// block_sync() or cluster barrier that publishes them.
TANDEM_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive (7.0), release at block scope: what this thread has done before is seen by those whose wait this
// phase ends. Any thread; counts one arrival. For a warp: warp_sync(), then one lane.
TANDEM_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mbarrier_arrive() where `predicate` holds: a predicated instruction, where a branch would end the basic block.
TANDEM_DEVICE void mbarrier_arrive_if(uint32_t barrier, bool predicate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}\n" ::"r"(barrier),
      "r"(static_cast<uint32_t>(predicate))
      : "memory");
}

// mbarrier.arrive.expect_tx (8.0): adds `bytes` to what the current phase waits for, then arrives once. By the thread
// that issues the copies, before it issues them.
TANDEM_DEVICE void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// mapa + mbarrier.arrive.shared::cluster (8.0), release at cluster scope: one arrival at the barrier that lies at the
// same offset in block `cluster_rank` of this cluster. That block must have initialized it (cluster barrier) and must
// not have left.
TANDEM_DEVICE void mbarrier_arrive_remote(uint32_t barrier, uint32_t cluster_rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(cluster_rank)
      : "memory");
}

// mbarrier.try_wait.parity (7.8) until the phase of this parity has completed; acquire at block scope. A fresh barrier
// is in phase 0: waiting for parity 1 returns at once, for parity 0 when the first phase completes. Any thread. It must
// not fall two phases behind: parities of phases 0 and 2 are the same.
TANDEM_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "TRY_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra TRY_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// As mbarrier_wait(), acquire at cluster scope: for phases that arrivals from other blocks complete.
TANDEM_DEVICE void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "TRY_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra TRY_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// mbarrier.test_wait.parity (7.1): has the phase of this parity completed? Acquires if so; never blocks.
TANDEM_DEVICE bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace tandem::sm90::ptx
