#pragma once

#include <cstdint>

#include "sm90/backward/load.cuh"
#include "sm90/backward/params.h"
#include "sm90/backward/step.cuh"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/pipeline.cuh"

// Deterministic: the order in which the n_blocks of a head add to an m_block's dQ is from the last to the first, that
// in which their tiles are drawn. A turn is the number of the n_block that adds next. The consumers do not wait for it:
// they hand what they have staged to the sender, which waits for the turn, adds, and when that has been done passes the
// turn on to the n_block before. docs/SCHEDULE.md has the argument that nobody waits for ever.
//
// The additions are the copy engine's, in the async proxy; turns are read and written with ordinary loads and stores.
// That a bulk operation has completed makes what it wrote visible to the thread that waits for that [PTX ISA, Async
// proxy: completion is followed by an implicit proxy fence], so its release hands the sums on. bulk_wait_read() would
// not do: it says that shared memory has been read, not that anything has been added. Who has acquired a turn calls
// fence_proxy_async(), so that its own addition, in the async proxy again, comes after what it has seen.
namespace tandem::sm90 {

// One thread. It walks the steps as the load thread does.
template <typename Traits>
class DqSender {
 public:
  TANDEM_DEVICE explicit DqSender(const BackwardParams& params) : params_(params) {}

  TANDEM_DEVICE void run() {
    while (reader_.next()) {
      TANDEM_NO_UNROLL
      for (int h = 0; h < params_.qheads_per_khead; ++h) {
        TANDEM_NO_UNROLL
        for (int m_block = slot().rows().m_begin; m_block < slot().rows().m_end; ++m_block) {
          const int head = slot().head().key_head * params_.qheads_per_khead + h;
          add_step(q_block_of(params_, slot(), m_block, head));
        }
      }
      reader_.release_by_thread();
    }
  }

 private:
  TANDEM_DEVICE BackwardSlot<Traits> slot() const { return reader_.slot(); }

  // Consumer 1's squares first: split, consumer 0's come one step late.
  TANDEM_DEVICE void add_step(int q_block) {
    uint32_t* const turn = params_.dq_turns + q_block;
    const auto own = static_cast<uint32_t>(slot().keys().first_key / Traits::kBlockN);
    while (ptx::load_acquire(turn) != own) {
    }
    ptx::fence_proxy_async();
    TANDEM_UNROLL
    for (int square = Traits::kDqSquaresOf0; square < Traits::kDqSquares; ++square) add_square(q_block, square, 1);
    TANDEM_UNROLL
    for (int square = 0; square < Traits::kDqSquaresOf0; ++square) add_square(q_block, square, 0);
    ptx::bulk_wait<0>();
    ptx::store_release(turn, own - 1);
  }

  // When consumer w has staged it.
  TANDEM_DEVICE void add_square(int q_block, int square, int w) {
    ptx::mbarrier_wait(barrier_at(Traits::kDqFull, w), phases_ >> w & 1);
    phases_ ^= 1u << w;
    constexpr int kWarps = 4;
    TANDEM_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) add_dq_of_warp<Traits>(params_, q_block, square, w, warp);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(barrier_at(Traits::kDqEmpty, w));
  }

  const BackwardParams& params_;
  BackwardReader<Traits> reader_;
  uint32_t phases_ = 0;  // bit w: of the next phase of dq_full[w]
};

}  // namespace tandem::sm90
