#pragma once

#include "sm90/ptx/cluster.cuh"
#include "wrappers/tma_cases.cuh"

// Two blocks of one cluster. Addresses are made of dynamic_shared_base(): the constant is block 0's.
namespace tandem::sm90::wrappers {

// Each block writes into the other's shared memory and arrives at the other's barrier.
struct ClusterExchange : CaseDefaults {
  static constexpr const char* kName = "cluster_exchange";
  static constexpr int kThreads = 64;
  static constexpr int kBlocks = 2;
  static constexpr int kClusterSize = 2;
  static constexpr int kInWords = 128;
  static constexpr int kOutWords = 256;

  TANDEM_DEVICE static void run(const Params& params) {
    const uint32_t barrier = ptx::dynamic_shared_base();
    const uint32_t data = barrier + 128;
    const uint32_t rank = ptx::cluster_rank();
    const uint32_t t = static_cast<uint32_t>(ptx::thread_rank());
    if (t == 0) {
      ptx::mbarrier_init(barrier, 2 * kThreads);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    const uint32_t value = ptx::load_global(params.in + rank * 64 + t);
    ptx::store_cluster_shared(ptx::map_shared(data + t * 4, rank ^ 1), value);
    ptx::mbarrier_arrive_remote(barrier, rank ^ 1);
    ptx::mbarrier_arrive_remote(barrier, rank);
    ptx::mbarrier_wait_cluster(barrier, 0);
    ptx::store_global(params.out + rank * 64 + t, ptx::load_shared<uint32_t>(data + (63 - t) * 4));
    ptx::store_global(params.out + 128 + rank * 64 + t, rank);
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  static void expect(const Words& in, Words& out) {
    for (int rank = 0; rank < 2; ++rank) {
      for (int t = 0; t < 64; ++t) {
        out[rank * 64 + t] = in[(1 - rank) * 64 + 63 - t];
        out[128 + rank * 64 + t] = static_cast<uint32_t>(rank);
      }
    }
  }
};

// A plain load inside a cluster goes to the block that asked for it.
struct ClusterOwnLoad : CaseDefaults {
  static constexpr const char* kName = "cluster_own_load";
  static constexpr int kThreads = 64;
  static constexpr int kBlocks = 2;
  static constexpr int kClusterSize = 2;
  static constexpr int kInWords = 128;
  static constexpr int kOutWords = 128;

  TANDEM_DEVICE static void run(const Params& params) {
    const uint32_t barrier = ptx::dynamic_shared_base();
    const uint32_t data = barrier + 128;
    const uint32_t rank = ptx::cluster_rank();
    const uint32_t t = static_cast<uint32_t>(ptx::thread_rank());
    if (t == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (t == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier, 256);
      ptx::bulk_load(data, params.in + rank * 64, 256, barrier);
    }
    ptx::mbarrier_wait(barrier, 0);
    ptx::store_global(params.out + rank * 64 + t, ptx::load_shared<uint32_t>(data + t * 4));
  }
  static void expect(const Words& in, Words& out) { out = in; }
};

// Each block loads one box for both; each sees both.
template <int kRank>
struct TmaMulticast : CaseDefaults {
  using Geometry = BoxGeometry<kRank, Swizzle::k128Bytes>;
  static constexpr const char* kName = kRank == 2   ? "tma_load_multicast_2d"
                                       : kRank == 3 ? "tma_load_multicast_3d"
                                       : kRank == 4 ? "tma_load_multicast_4d"
                                                    : "tma_load_multicast_5d";
  static constexpr int kBlocks = 2;
  static constexpr int kClusterSize = 2;
  static constexpr int kBoxWords = Geometry::kBoxElems / 2;
  static constexpr int kInWords = Geometry::kTensorElems / 2;
  static constexpr int kOutWords = 4 * kBoxWords;
  static TensorMapSpec load_map(const void* in) { return Geometry::map(in); }

  TANDEM_DEVICE static void run(const Params& params) {
    const uint32_t barrier = ptx::dynamic_shared_base();
    const uint32_t data = barrier + 1024;
    constexpr int c0 = Geometry::kCorner[0];
    constexpr int c1 = Geometry::kCorner[1];
    constexpr int c2 = Geometry::kCorner[2];
    constexpr int c3 = Geometry::kCorner[3];
    constexpr int c4 = Geometry::kCorner[4];
    const uint32_t rank = ptx::cluster_rank();
    if (ptx::thread_rank() == 0) {
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, 2 * kBoxWords * 4);
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (ptx::thread_rank() == 0) {
      const uint32_t smem = data + rank * kBoxWords * 4;
      const uint16_t both = 3;
      if constexpr (kRank == 2) ptx::tma_load_multicast_2d(smem, &params.load_map, barrier, both, c0, c1);
      if constexpr (kRank == 3) ptx::tma_load_multicast_3d(smem, &params.load_map, barrier, both, c0, c1, c2);
      if constexpr (kRank == 4) ptx::tma_load_multicast_4d(smem, &params.load_map, barrier, both, c0, c1, c2, c3);
      if constexpr (kRank == 5) ptx::tma_load_multicast_5d(smem, &params.load_map, barrier, both, c0, c1, c2, c3, c4);
    }
    ptx::mbarrier_wait(barrier, 0);
    for (int i = ptx::thread_rank(); i < 2 * kBoxWords; i += kThreads) {
      const uint32_t value = ptx::load_shared<uint32_t>(data + static_cast<uint32_t>(i) * 4);
      ptx::store_global(params.out + rank * 2 * kBoxWords + i, value);
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  static void expect(const Words& in, Words& out) {
    for (int copy = 0; copy < 4; ++copy) {
      Geometry::for_each([&](int place, int64_t element) {
        set_half(out, copy * Geometry::kBoxElems + place, element < 0 ? 0 : half_at(in, element));
      });
    }
  }
};

}  // namespace tandem::sm90::wrappers
