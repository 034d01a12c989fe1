#include "engine/op.h"

namespace tandem::model {

const char* op_name(Op op) {
  switch (op) {
    case Op::kBarrierInit: return "mbarrier_init";
    case Op::kFenceBarrierInit: return "fence_mbarrier_init";
    case Op::kBarrierArrive: return "mbarrier_arrive";
    case Op::kBarrierExpect: return "mbarrier_arrive_expect_tx";
    case Op::kBarrierWait: return "mbarrier_wait";
    case Op::kBarrierTest: return "mbarrier_test";
    case Op::kTmaLoad: return "tma_load";
    case Op::kTmaStore: return "tma_store";
    case Op::kBulkLoad: return "bulk_load";
    case Op::kBulkStore: return "bulk_store";
    case Op::kBulkReduce: return "bulk_reduce_add_f32";
    case Op::kBulkCommit: return "bulk_commit";
    case Op::kBulkWait: return "bulk_wait";
    case Op::kBulkWaitRead: return "bulk_wait_read";
    case Op::kFence: return "fence";
    case Op::kFenceProxy: return "fence_proxy_async";
    case Op::kNamedSync: return "named_barrier_sync";
    case Op::kNamedArrive: return "named_barrier_arrive";
    case Op::kWgmma: return "wgmma";
    case Op::kWgmmaFence: return "wgmma_fence";
    case Op::kWgmmaCommit: return "wgmma_commit";
    case Op::kWgmmaWait: return "wgmma_wait";
    case Op::kSetMaxRegisters: return "setmaxnreg";
    case Op::kElect: return "elect_one";
    case Op::kWarpIndex: return "warp_index";
    case Op::kShuffle: return "shuffle";
    case Op::kVote: return "vote";
    case Op::kWarpSync: return "warp_sync";
    case Op::kLdmatrix: return "ldmatrix";
    case Op::kStmatrix: return "stmatrix";
    case Op::kMma: return "mma";
    case Op::kLoadShared: return "load_shared";
    case Op::kStoreShared: return "store_shared";
    case Op::kLoadGlobal: return "load_global";
    case Op::kStoreGlobal: return "store_global";
    case Op::kAtomic: return "atomic";
    case Op::kLoadAcquire: return "load_acquire";
    case Op::kStoreRelease: return "store_release";
    case Op::kClusterArrive: return "cluster_arrive";
    case Op::kClusterWait: return "cluster_wait";
    case Op::kGridLaunch: return "launch_dependent_grid";
    case Op::kGridWait: return "wait_for_previous_grid";
    case Op::kExponential: return "ex2";
    case Op::kCopyDone: return "load done";
    case Op::kStoreDone: return "store done";
    case Op::kProductDone: return "product done";
  }
  return "";
}

}  // namespace tandem::model
