#pragma once

#include <cstdint>

#include "sm90/backward/load.cuh"
#include "sm90/backward/params.h"
#include "sm90/backward/row_keys.cuh"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/clear_rows.cuh"
#include "sm90/tile/pipeline.cuh"

// The clean-up warp. P and dS of what is hidden are 0, but the products that sum over queries (dV, dK) and keys (dQ)
// would multiply them by whatever lies there [7]: rows that see no key and keys that no row sees are cleared in shared
// memory before a consumer reads them. Most steps need none of this and never meet this warp.
namespace tandem::sm90 {

// Bit i: row first_row + i sees some key. For 32 rows.
template <typename Traits>
TANDEM_DEVICE uint32_t seeing_rows(const BackwardParams& params, BackwardSlot<Traits> slot, int first_row, int head) {
  const TileMask mask = slot.mask();
  const uint32_t bits = bits_between(first_row, mask.seen_begin, mask.seen_end);
  if (!has_bounds<Traits>(params)) return bits;
  const TileQueryRange rows = slot.rows();
  const BasicRowInterval<int> keys = narrowed_row_keys(params, rows.q_begin, first_row + ptx::lane_index(), rows.q_len,
                                                       slot.keys().k_len, head, slot.sequence().batch);
  return ptx::ballot_sync(!keys.empty());
}

// A whole warp. It walks the stages as the load thread does.
template <typename Traits>
class BackwardCleaner {
 public:
  TANDEM_DEVICE explicit BackwardCleaner(const BackwardParams& params) : params_(params) {}

  TANDEM_DEVICE void run() {
    while (reader_.next()) {
      if (!all_seen(reader_.slot().seen()) && has_steps()) phases_ |= kKeysPending;
      TANDEM_NO_UNROLL
      for (int h = 0; h < params_.qheads_per_khead; ++h) {
        TANDEM_NO_UNROLL
        for (int m_block = reader_.slot().rows().m_begin; m_block < reader_.slot().rows().m_end; ++m_block) {
          clean_step(m_block, h);
          if ((phases_ & kKeysPending) != 0) clean_keys();
        }
      }
      reader_.release_by_warp();
    }
  }

 private:
  // PERF: one register for all that is a bit: parities of the next phases of q_landed[s] (bit s), of do_landed[s] (bit
  // 8
  // + s), of k_landed and v_landed; and whether the tile's keys are still to be cleaned.
  static constexpr int kDoPhases = 8;
  static constexpr int kKeyPhase = 16;
  static constexpr uint32_t kKeysPending = 1u << 17;

  TANDEM_DEVICE bool has_steps() const { return reader_.slot().rows().m_begin < reader_.slot().rows().m_end; }

  TANDEM_DEVICE void clean_step(int m_block, int h) {
    const BackwardSlot<Traits> slot = reader_.slot();
    const int head = slot.head().key_head * params_.qheads_per_khead + h;
    if (needs_cleaning<Traits>(params_, slot.mask(), m_block, q_block_of(params_, slot, m_block, head))) {
      const int first_row = m_block * Traits::kBlockM;
      wait_landed(barrier_at(Traits::kQLanded, q_pipe_.index), q_pipe_.index);
      clean_rows<typename Traits::QTile>(Traits::kSmemQ, q_pipe_.index, first_row, head);
      pass_on(barrier_at(Traits::kQFull, q_pipe_.index));
      wait_landed(barrier_at(Traits::kDoLanded, do_pipe_.index), kDoPhases + do_pipe_.index);
      clean_rows<typename Traits::DoTile>(Traits::kSmemDo, do_pipe_.index, first_row, head);
      pass_on(barrier_at(Traits::kDoFull, do_pipe_.index));
    }
    q_pipe_.advance();
    do_pipe_.advance();
  }

  TANDEM_DEVICE void wait_landed(uint32_t barrier, int bit) {
    ptx::mbarrier_wait(barrier, phases_ >> bit & 1);
    phases_ ^= 1u << bit;
  }

  template <typename Tile>
  TANDEM_DEVICE void clean_rows(uint32_t tiles, int stage, int first_row, int head) const {
    TANDEM_NO_UNROLL
    for (int row = 0; row < Traits::kBlockM; row += 32) {
      const uint32_t blind = ~seeing_rows<Traits>(params_, reader_.slot(), first_row + row, head);
      if (blind != 0) clear_rows<Tile>(tiles + static_cast<uint32_t>(stage) * Tile::kBytes, row, blind);
    }
  }

  TANDEM_DEVICE void clean_keys() {
    ptx::mbarrier_wait(Traits::kKLanded, phases_ >> kKeyPhase & 1);
    clear_unseen<typename Traits::KTile>(Traits::kSmemK);
    pass_on(Traits::kKFull);
    ptx::mbarrier_wait(Traits::kVLanded, phases_ >> kKeyPhase & 1);
    clear_unseen<typename Traits::VTile>(Traits::kSmemV);
    pass_on(Traits::kVFull);
    phases_ ^= kKeysPending | 1u << kKeyPhase;
  }

  template <typename Tile>
  TANDEM_DEVICE void clear_unseen(uint32_t address) const {
    const uint32_t bits = reader_.slot().address + 64;  // SeenKeys
    TANDEM_NO_UNROLL
    for (int key = 0; key < Traits::kBlockN; key += 32) {
      const uint32_t unseen = ~ptx::load_shared<uint32_t>(bits + static_cast<uint32_t>(key) / 8);
      if (unseen != 0) clear_rows<Tile>(address, key, unseen);
    }
  }

  TANDEM_DEVICE void pass_on(uint32_t full) const {
    ptx::fence_proxy_async_shared();
    ptx::warp_sync();
    ptx::mbarrier_arrive_if(full, ptx::lane_index() == 0);
  }

  const BackwardParams& params_;
  BackwardReader<Traits> reader_;
  PipelineState<Traits::kQStages> q_pipe_;
  PipelineState<Traits::kDoStages> do_pipe_;
  uint32_t phases_ = 0;
};

}  // namespace tandem::sm90
