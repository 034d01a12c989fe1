#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/setmaxnreg.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "wrappers/case.h"

// Threads, warps and barriers of one block.
namespace tandem::sm90::wrappers {

struct Indices : CaseDefaults {
  static constexpr const char* kName = "indices";
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 2;
  static constexpr int kInWords = 1;
  static constexpr int kOutWords = kBlocks * kThreads;

  TANDEM_DEVICE static void run(const Params& params) {
    const int elected = static_cast<int>(ptx::elect_one());
    const uint32_t electors = ptx::ballot_sync(elected != 0);
    const bool one_elected = electors != 0 && (electors & (electors - 1)) == 0;
    const int packed = ptx::lane_index() | ptx::warp_index() << 5 | ptx::warpgroup_index() << 10 |
                       ptx::block_index() << 12 | ptx::grid_size() << 16 | static_cast<int>(one_elected) << 20;
    ptx::store_global(params.out + ptx::block_index() * kThreads + ptx::thread_rank(), static_cast<uint32_t>(packed));
  }
  static void expect(const Words&, Words& out) {
    for (int block = 0; block < kBlocks; ++block) {
      for (int t = 0; t < kThreads; ++t) {
        out[block * kThreads + t] =
            static_cast<uint32_t>(t % 32 | t / 32 << 5 | t / 128 << 10 | block << 12 | kBlocks << 16 | 1 << 20);
      }
    }
  }
};

struct Shuffles : CaseDefaults {
  static constexpr const char* kName = "shuffles";
  static constexpr int kThreads = 32;
  static constexpr int kInWords = 32;
  static constexpr int kOutWords = 32 * 9;

  TANDEM_DEVICE static void run(const Params& params) {
    const int lane = ptx::lane_index();
    const uint32_t value = ptx::load_global(params.in + lane);
    for (int bit = 0; bit < 5; ++bit) {
      ptx::store_global(params.out + bit * 32 + lane, ptx::shuffle_xor(value, 1 << bit));
    }
    ptx::store_global(params.out + 5 * 32 + lane, ptx::shuffle_index(value, (lane * 7 + 3) % 32));
    const bool odd = value % 2 != 0;
    ptx::store_global(params.out + 6 * 32 + lane, ptx::ballot_sync(odd));
    const int votes = static_cast<int>(ptx::any_sync(odd)) | static_cast<int>(ptx::all_sync(odd)) << 1 |
                      static_cast<int>(ptx::any_sync(lane == 40)) << 2 |
                      static_cast<int>(ptx::all_sync(lane < 32)) << 3;
    ptx::store_global(params.out + 7 * 32 + lane, static_cast<uint32_t>(votes));
    const float as_float = static_cast<float>(lane) + 0.5f;
    const float sum = ptx::shuffle_xor(as_float, 16) * 64.0f + ptx::shuffle_index(as_float, 31 - lane);
    ptx::store_global(params.out + 8 * 32 + lane, static_cast<uint32_t>(sum * 2.0f));
  }
  static void expect(const Words& in, Words& out) {
    uint32_t ballot = 0;
    for (int lane = 0; lane < 32; ++lane) ballot |= (in[lane] % 2) << lane;
    for (int lane = 0; lane < 32; ++lane) {
      for (int bit = 0; bit < 5; ++bit) out[bit * 32 + lane] = in[lane ^ (1 << bit)];
      out[5 * 32 + lane] = in[(lane * 7 + 3) % 32];
      out[6 * 32 + lane] = ballot;
      out[7 * 32 + lane] = static_cast<uint32_t>(ballot != 0) | static_cast<uint32_t>(ballot == 0xffffffffu) << 1 | 8;
      out[8 * 32 + lane] = static_cast<uint32_t>((2 * (lane ^ 16) + 1) * 64 + 2 * (31 - lane) + 1);
    }
  }
};

// Warp 0 hands words to warp 1 through two stages and back-pressure, over several phases of each barrier.
struct MbarrierRing : CaseDefaults {
  static constexpr const char* kName = "mbarrier_ring";
  static constexpr int kThreads = 64;
  static constexpr int kRounds = 9;
  static constexpr int kInWords = kRounds * 32;
  static constexpr int kOutWords = kRounds * 32;

  TANDEM_DEVICE static void run(const Params& params) {
    constexpr uint32_t kFull = ptx::kDynamicSharedBase;
    constexpr uint32_t kEmpty = kFull + 16;
    constexpr uint32_t kData = kFull + 128;
    const int lane = ptx::lane_index();
    if (ptx::thread_rank() == 0) {
      for (int stage = 0; stage < 2; ++stage) {
        ptx::mbarrier_init(kFull + stage * 8, 32);  // every lane arrives
        ptx::mbarrier_init(kEmpty + stage * 8, 1);  // one lane does
      }
      ptx::fence_mbarrier_init();
    }
    ptx::block_sync();
    for (int round = 0; round < kRounds; ++round) {
      const int stage = round % 2;
      const uint32_t parity = static_cast<uint32_t>(round / 2 % 2);
      const uint32_t slot = kData + static_cast<uint32_t>(stage * 128 + lane * 4);
      if (ptx::warp_index() == 0) {
        ptx::mbarrier_wait(kEmpty + stage * 8, parity ^ 1);
        ptx::store_shared(slot, ptx::load_global(params.in + round * 32 + lane));
        ptx::mbarrier_arrive(kFull + stage * 8);
      } else {
        ptx::mbarrier_wait(kFull + stage * 8, parity);
        const uint32_t other = kData + static_cast<uint32_t>(stage * 128 + (31 - lane) * 4);
        ptx::store_global(params.out + round * 32 + lane, ptx::load_shared<uint32_t>(other));
        ptx::warp_sync();
        ptx::mbarrier_arrive_if(kEmpty + stage * 8, lane == 5);
      }
    }
  }
  static void expect(const Words& in, Words& out) {
    for (int i = 0; i < kOutWords; ++i) out[i] = in[i / 32 * 32 + 31 - i % 32];
  }
};

// The parity rules, by one thread: a fresh barrier's phase -1 counts as completed, phase 0 does not.
struct MbarrierPhases : CaseDefaults {
  static constexpr const char* kName = "mbarrier_phases";
  static constexpr int kThreads = 32;
  static constexpr int kInWords = 1;
  static constexpr int kOutWords = 8;

  TANDEM_DEVICE static void run(const Params& params) {
    if (ptx::thread_rank() != 0) return;
    constexpr uint32_t kBarrier = ptx::kDynamicSharedBase;
    int next = 0;
    const auto record = [&] {
      ptx::store_global(params.out + next++, static_cast<uint32_t>(ptx::mbarrier_test(kBarrier, 0)));
      ptx::store_global(params.out + next++, static_cast<uint32_t>(ptx::mbarrier_test(kBarrier, 1)));
    };
    ptx::mbarrier_init(kBarrier, 2);
    record();  // phase 0
    ptx::mbarrier_arrive(kBarrier);
    record();  // still phase 0: one of two
    ptx::mbarrier_arrive_expect_tx(kBarrier, 0);
    record();  // phase 1
    ptx::mbarrier_arrive(kBarrier);
    ptx::mbarrier_arrive(kBarrier);
    record();  // phase 2
  }
  static void expect(const Words&, Words& out) { out = {0, 1, 0, 1, 1, 0, 0, 1}; }
};

// Warpgroup 0 writes and only arrives; warpgroup 1 syncs, reads, and writes back. And setmaxnreg, which must change
// nothing.
struct NamedBarriers : CaseDefaults {
  static constexpr const char* kName = "named_barriers";
  static constexpr int kThreads = 384;
  static constexpr int kInWords = 128;
  static constexpr int kOutWords = 384;

  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::thread_rank() % 128;
    const uint32_t slot = ptx::kDynamicSharedBase + static_cast<uint32_t>(t) * 4;
    const uint32_t across = ptx::kDynamicSharedBase + static_cast<uint32_t>(t ^ 127) * 4;
    const int warpgroup = ptx::warpgroup_index();
    if (warpgroup == 0) {
      ptx::setmaxnreg_decrease<40>();
      ptx::store_shared(slot, ptx::load_global(params.in + t));
      ptx::named_barrier_arrive(3, 384);
      ptx::named_barrier_sync(4, 256);
      ptx::store_global(params.out + t, ptx::load_shared<uint32_t>(across));
    } else {
      ptx::setmaxnreg_increase<232>();
      ptx::named_barrier_sync(3, 384);
      const uint32_t value = ptx::load_shared<uint32_t>(across);
      ptx::store_global(params.out + warpgroup * 128 + t, value);
      ptx::named_barrier_sync(5, 256);  // of warpgroups 1 and 2: both have read
      if (warpgroup == 1) {
        ptx::store_shared(slot, value + 1);
        ptx::named_barrier_arrive(4, 256);
      }
    }
  }
  static void expect(const Words& in, Words& out) {
    for (int t = 0; t < 128; ++t) {
      out[t] = in[t] + 1;
      out[128 + t] = in[t ^ 127];
      out[256 + t] = in[t ^ 127];
    }
  }
};

}  // namespace tandem::sm90::wrappers
