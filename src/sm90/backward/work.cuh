#pragma once

#include <cstdint>

#include "sm90/backward/records.h"
#include "sm90/backward/traits.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/tile/pipeline.cuh"

// What a work tile is: one n_block of one key head of one sequence, with all query heads of that key head. A step is
// one m_block of one of these heads. A slot holds the record of the n_block (records.h), and a word of the load
// thread's.
namespace tandem::sm90 {

// Half of SeenKeys.
struct SeenGroup {
  uint32_t bits[2];
};

struct TileHead {
  int valid;  // 0: there is no more work
  int key_head;
  int unused[2];
};

template <typename Traits>
struct BackwardSlot {
  static_assert(sizeof(KeyBlockRecord) + sizeof(TileHead) == Traits::kTileSlotBytes);

  TANDEM_DEVICE explicit BackwardSlot(int index)
      : address(Traits::kTileSlots + static_cast<uint32_t>(index) * Traits::kTileSlotBytes) {}

  TANDEM_DEVICE TileKeyRange keys() const { return ptx::load_shared<TileKeyRange>(address); }
  TANDEM_DEVICE TileQueryRange rows() const { return ptx::load_shared<TileQueryRange>(address + 16); }
  TANDEM_DEVICE TileMask mask() const { return ptx::load_shared<TileMask>(address + 32); }
  TANDEM_DEVICE TileSequence sequence() const { return ptx::load_shared<TileSequence>(address + 48); }
  TANDEM_DEVICE SeenKeys seen() const { return ptx::load_shared<SeenKeys>(address + 64); }
  // Of the tile's keys 64 group to 64 group + 63.
  TANDEM_DEVICE SeenGroup seen_of(int group) const {
    return ptx::load_shared<SeenGroup>(address + 64 + static_cast<uint32_t>(group) * 8);
  }
  TANDEM_DEVICE TileHead head() const { return ptx::load_shared<TileHead>(address + 80); }
  TANDEM_DEVICE void set(const TileHead& head) const { ptx::store_shared(address + 80, head); }

  uint32_t address;
};

TANDEM_DEVICE bool all_seen(const SeenKeys& seen) {
  return (seen.bits[0] & seen.bits[1] & seen.bits[2] & seen.bits[3]) == 0xffffffffu;
}

// A step as the consumers see it; it lies beside its stage of Q, and stays as long as that.
struct BackwardStep {
  int q_block;    // q_block_index(): where its LSE, delta and dQ are
  int flags;      // kStepMasked, kStepFirst, kStepLast
  int first_row;  // of the m_block, in its sequence
  int head;       // query head
};
constexpr int kStepMasked = 1;      // not all of its rows see all keys of the tile
constexpr int kStepFirst = 2;       // of the tile
constexpr int kStepLast = 4;        // of the tile
constexpr uint32_t kStepFlags = 4;  // where in the step they are

// Of the step whose Q lies in stage q.
template <typename Traits>
TANDEM_DEVICE uint32_t step_address(int q) {
  return Traits::kSteps + static_cast<uint32_t>(q) * Traits::kStepBytes;
}

// Walks the work tiles of a block, as each of the load thread's readers does.
template <typename Traits>
class BackwardReader {
 public:
  // Waits for the next tile; false: there is no more.
  TANDEM_DEVICE bool next() {
    ptx::mbarrier_wait(barrier_at(Traits::kTileFull, index()), tile_ / 2 % 2);
    return slot().head().valid != 0;
  }
  // Of the tile that next() has brought.
  TANDEM_DEVICE BackwardSlot<Traits> slot() const { return BackwardSlot<Traits>(index()); }
  // The tile's number, modulo 2: the parity of barriers that complete one phase a tile.
  TANDEM_DEVICE uint32_t parity() const { return tile_ % 2; }

  // A whole warp: done with the tile.
  TANDEM_DEVICE void release_by_warp() {
    ptx::warp_sync();
    ptx::mbarrier_arrive_if(barrier_at(Traits::kTileEmpty, index()), ptx::lane_index() == 0);
    ++tile_;
  }
  // One thread, which reads tiles alone.
  TANDEM_DEVICE void release_by_thread() {
    ptx::mbarrier_arrive(barrier_at(Traits::kTileEmpty, index()));
    ++tile_;
  }

 private:
  static_assert(Traits::kTileStages == 2);
  TANDEM_DEVICE int index() const { return static_cast<int>(tile_ % 2); }
  uint32_t tile_ = 0;  // PERF: all that a consumer keeps from tile to tile of the slots; registers are short
};

}  // namespace tandem::sm90
