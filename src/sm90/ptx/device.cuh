#pragma once

#include <cstdint>

// What a kernel says about itself, and who a thread is. Device code of this project uses nothing of CUDA but the names
// of this folder: the host model implements the same headers under the same paths, found first.
//
// Unless a function says otherwise, each thread that needs its value calls it, alone and at any time.
//
// PTX: section names are those of the PTX ISA; the number is the version that introduced the instruction.

#define TANDEM_DEVICE __device__ __forceinline__
#define TANDEM_KERNEL __global__ void
#define TANDEM_LAUNCH_BOUNDS(threads, blocks_per_sm) __launch_bounds__(threads, blocks_per_sm)
#define TANDEM_GRID_CONSTANT __grid_constant__
#define TANDEM_UNROLL _Pragma("unroll")
#define TANDEM_NO_UNROLL _Pragma("unroll 1")
// Of a branch: the compiler moves its code out of the way of what is executed otherwise.
#define TANDEM_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), false)

namespace tandem::sm90::ptx {

constexpr int kWarpThreads = 32;
constexpr int kWarpgroupThreads = 128;

// %tid.x. Blocks are one-dimensional.
TANDEM_DEVICE int thread_rank() {
  return static_cast<int>(threadIdx.x);
}

// thread_rank(), read again at each call: what is computed from it is not kept in registers between calls. For
// code that runs once a work tile, so that its addresses do not take registers of the loops between.
TANDEM_DEVICE int thread_rank_anew() {
  int rank;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(rank));
  return rank;
}

// thread_rank() modulo the warp.
TANDEM_DEVICE int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarpThreads;
}

// The same number in every lane, and known by the compiler to be (a shuffle), so that branches on it are uniform and
// addresses made of it live in uniform registers. Called by all 32 threads of the warp.
TANDEM_DEVICE int warp_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpThreads, 0);
}

// As warp_index(), of the block's warpgroups of 128 threads.
TANDEM_DEVICE int warpgroup_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
}

// %ctaid.x and %nctaid.x. Grids are one-dimensional.
TANDEM_DEVICE int block_index() {
  return static_cast<int>(blockIdx.x);
}
TANDEM_DEVICE int grid_size() {
  return static_cast<int>(gridDim.x);
}

// elect.sync (8.0): true in one lane of the warp, the same one each time. Called by all 32 threads of the warp.
TANDEM_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// trap (1.0): the launch ends with an error. For what the host has checked and cannot be.
TANDEM_DEVICE void trap() {
  asm volatile("trap;");
}

}  // namespace tandem::sm90::ptx
