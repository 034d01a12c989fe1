#pragma once

#include <cstdint>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/tensor_map.h"

// The copy engine (TMA): boxes of tensors, and plain runs of bytes, between global and shared memory.
//
// Each function is called by one thread and returns at once. Loads complete on an mbarrier: each adds the bytes it
// has written (a whole box, parts outside the tensor included: those are filled with zeros) to the barrier's count, and
// whoever waits for that phase sees them. Stores and reductions complete in groups of the thread that issued them:
// bulk_commit(), bulk_wait...(); parts of a box outside the tensor are not written.
//
// Coordinates c0.. count elements, c0 along the contiguous axis. Those of loads may be negative; those of stores may
// not (an illegal instruction on the H200), but may lie past the end. Shared addresses are multiples of 128 bytes (of a
// swizzle's whole pattern, 1024 for 128-byte rows, where the layout's formula is to hold). HAZARD: the engine is
// another proxy. Shared memory that threads have written is visible to it only after fence_proxy_async_shared() by each
// writer, then a barrier. That it has been read before by threads needs a barrier only.
//
// PTX: Data Movement and Conversion Instructions: cp.async.bulk and cp.async.bulk.tensor (8.0).
namespace tandem::sm90::ptx {

// prefetch.tensormap (8.0): a hint, before the first use. The map lies in a kernel parameter.
TANDEM_DEVICE void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Box at (c0, ...) of the tensor to `smem`; completes on `barrier`, of this block. The caller has announced the box's
// bytes there with mbarrier_arrive_expect_tx() and knows the space to be free (an *_empty barrier).
TANDEM_DEVICE void tma_load_2d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}
TANDEM_DEVICE void tma_load_3d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
TANDEM_DEVICE void tma_load_4d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
TANDEM_DEVICE void tma_load_5d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3,
                               int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// As tma_load, to the same offset in each block of the cluster whose bit is set in `blocks`; each of them gets the
// bytes counted on its own barrier at the same offset. One block issues, all have announced the bytes.
TANDEM_DEVICE void tma_load_multicast_2d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                         int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(smem),
      "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1)
      : "memory");
}
TANDEM_DEVICE void tma_load_multicast_3d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                         int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(smem),
      "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
TANDEM_DEVICE void tma_load_multicast_4d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                         int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(smem),
      "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
TANDEM_DEVICE void tma_load_multicast_5d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                         int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(smem),
      "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// `smem` to the box at (c0, ...) of the tensor. The caller has seen to the proxy fence of the writers.
TANDEM_DEVICE void tma_store_2d(const TensorMap* map, uint32_t smem, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(smem),
               "r"(c0), "r"(c1)
               : "memory");
}
TANDEM_DEVICE void tma_store_3d(const TensorMap* map, uint32_t smem, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(smem),
               "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
TANDEM_DEVICE void tma_store_4d(const TensorMap* map, uint32_t smem, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
TANDEM_DEVICE void tma_store_5d(const TensorMap* map, uint32_t smem, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
               "r"(smem), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

// `bytes` from global memory to shared memory; both addresses and the size are multiples of 16. Completes on `barrier`
// as tma_load does.
TANDEM_DEVICE void bulk_load(uint32_t smem, const void* gmem, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
               "l"(gmem), "r"(bytes), "r"(barrier)
               : "memory");
}

// `bytes` from shared memory to global memory; both addresses and the size are multiples of 16.
TANDEM_DEVICE void bulk_store(void* gmem, uint32_t smem, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(gmem), "r"(smem), "r"(bytes)
               : "memory");
}

// cp.reduce.async.bulk ... .add.f32 (8.0): adds `bytes` of fp32 in shared memory onto global memory, each element
// atomically, in no stated order. Same alignments.
TANDEM_DEVICE void bulk_reduce_add_f32(float* gmem, uint32_t smem, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(gmem), "r"(smem),
               "r"(bytes)
               : "memory");
}

// cp.async.bulk.commit_group: the calling thread's stores and reductions since the last commit become one group.
TANDEM_DEVICE void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// cp.async.bulk.wait_group.read: until all but the calling thread's last kPending groups have read their shared memory,
// which may then be written again.
template <int kPending>
TANDEM_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// cp.async.bulk.wait_group: until all but the last kPending groups have also written global memory, visibly to the
// calling thread.
template <int kPending>
TANDEM_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem::sm90::ptx
