#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "wrappers/case.h"

namespace tandem::sm90::wrappers {

// A first grid lets the second begin at once, and then takes its time over what the second waits for and reads.
struct GridDependency : CaseDefaults {
  static constexpr const char* kName = "grid_dependency";
  static constexpr int kPrepareThreads = 64;
  static constexpr int kThreads = 64;
  static constexpr int kBlocks = 3;
  static constexpr int kInWords = 64;
  static constexpr int kOutWords = (1 + kBlocks) * 64;
  static constexpr uint32_t kOutFill = 0;

  TANDEM_DEVICE static void prepare(const Params& params) {
    ptx::launch_dependent_grid();
    const int t = ptx::thread_rank();
    uint32_t value = ptx::load_global(params.in + t);
    for (int i = 0; i < 100; ++i) value += ptx::atomic_add(params.out + t, 1);  // 0 + 1 + ... + 99
    ptx::store_global(params.out + t, value);
  }
  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::thread_rank();
    ptx::wait_for_previous_grid();
    ptx::store_global(params.out + (1 + ptx::block_index()) * 64 + t, ptx::load_global(params.out + 63 - t));
  }
  static void expect(const Words& in, Words& out) {
    for (int i = 0; i < kOutWords; ++i) out[i] = in[i < 64 ? i : 63 - i % 64] + 99 * 100 / 2;
  }
};

}  // namespace tandem::sm90::wrappers
