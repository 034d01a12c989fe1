#pragma once

#include <cstdint>

namespace tandem::model {

// The calls that a kernel can make of sm90/ptx, but for arithmetic: what traces name and faults choose.
enum class Op {
  kBarrierInit,
  kFenceBarrierInit,
  kBarrierArrive,  // its number is added to the barrier's address
  kBarrierExpect,  // arrive.expect_tx; its number is the bytes
  kBarrierWait,    // its number is the parity
  kBarrierTest,
  kTmaLoad,   // its number is coordinate 1
  kTmaStore,  // its number is coordinate 1
  kBulkLoad,  // of these three, the number is the bytes
  kBulkStore,
  kBulkReduce,
  kBulkCommit,
  kBulkWait,
  kBulkWaitRead,
  kFence,
  kFenceProxy,   // fence_proxy_async_shared(), fence_proxy_async()
  kNamedSync,    // block_sync() too; its number is the threads
  kNamedArrive,  // its number is the threads
  kWgmma,        // its number is added to the descriptor of B
  kWgmmaFence,
  kWgmmaCommit,
  kWgmmaWait,
  kSetMaxRegisters,  // its number is the registers
  kElect,
  kWarpIndex,
  kShuffle,
  kVote,  // left out, nobody is for it
  kWarpSync,
  kLdmatrix,
  kStmatrix,
  kMma,
  kLoadShared,  // of all accesses, the number is added to the address
  kStoreShared,
  kLoadGlobal,
  kStoreGlobal,
  kAtomic,
  kLoadAcquire,   // of these two, to the value that is loaded or stored; a load that is left out
  kStoreRelease,  // loads, and acquires nothing
  kClusterArrive,
  kClusterWait,
  kGridLaunch,  // launch_dependent_grid()
  kGridWait,    // wait_for_previous_grid()
  kExponential,
  kCopyDone,     // not calls: a load has landed,
  kStoreDone,    // a store or reduction has been written,
  kProductDone,  // a wgmma is complete
};
constexpr int kOps = static_cast<int>(Op::kProductDone) + 1;

const char* op_name(Op op);

// What a call is about: a barrier or a place in shared memory by address, a named barrier by number, or nothing.
struct Place {
  enum class Kind { kNone, kShared, kNamedBarrier };
  Kind kind = Kind::kNone;
  uint32_t number = 0;

  static Place shared(uint32_t address) { return {Kind::kShared, address}; }
  static Place named(int id) { return {Kind::kNamedBarrier, static_cast<uint32_t>(id)}; }
};

}  // namespace tandem::model
