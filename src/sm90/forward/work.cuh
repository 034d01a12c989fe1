#pragma once

#include <cstdint>

#include "sm90/forward/traits.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/tile/pipeline.cuh"

// What the scheduler tells everybody else of a work tile: one m_block of one head of one sequence, and the n_blocks it
// visits. A slot in shared memory holds it as words of 16 bytes, read when they are needed rather than kept in
// registers; it stays as it is until its readers have released it at the end of the tile.
namespace tandem::sm90 {

struct TilePlace {
  int valid;      // 0: there is no more work
  int first_row;  // of the m_block, in its sequence
  int head;
  int batch;  // 0 in a packed problem, whose rows and keys count from the start of the buffer
};

struct TileRows {
  int q_begin;  // the sequence's first row in the buffer
  int q_len;    // used rows; the rest of q_rows are written as rows that see no key
  int q_rows;
  int k_begin;  // the sequence's first key in the buffer
};

struct TileKeys {
  int begin, end;  // n_blocks that some consumer visits
  int k_len;
  int key_head;
};

// n_blocks outside [clean_begin, clean_end) hold keys that no row of the tile sees: their V is cleared before use.
// Unless the mask is narrowed these are the keys outside [seen_begin, seen_end).
struct TileSeen {
  int clean_begin, clean_end;
  int seen_begin, seen_end;
};

// The n_blocks that consumer w visits, of which [full_begin, full_end) need no mask. In all, they lie within TileKeys.
struct ConsumerBlocks {
  int begin, end, full_begin, full_end;
};

// One more word in e4m3: the number of the sequence, and the scale of Q for the rows of each consumer.
template <typename Traits>
struct TileSlot {
  static constexpr uint32_t kScalesWord = 4 + Traits::kConsumers;
  static constexpr uint32_t kWords = kScalesWord + (Traits::kFp8 ? 1 : 0);
  static_assert(kWords * 16 <= Traits::kTileSlotBytes);

  TANDEM_DEVICE explicit TileSlot(int index)
      : address_(Traits::kTileSlots + static_cast<uint32_t>(index) * Traits::kTileSlotBytes) {}

  TANDEM_DEVICE TilePlace place() const { return ptx::load_shared<TilePlace>(address_); }
  TANDEM_DEVICE TileRows rows() const { return ptx::load_shared<TileRows>(address_ + 16); }
  TANDEM_DEVICE TileKeys keys() const { return ptx::load_shared<TileKeys>(address_ + 32); }
  TANDEM_DEVICE TileSeen seen() const { return ptx::load_shared<TileSeen>(address_ + 48); }
  TANDEM_DEVICE ConsumerBlocks blocks(int w) const {
    return ptx::load_shared<ConsumerBlocks>(address_ + 64 + static_cast<uint32_t>(w) * 16);
  }

  TANDEM_DEVICE int sequence() const { return ptx::load_shared<int>(address_ + kScalesWord * 16); }
  TANDEM_DEVICE float q_scale(int w) const {
    return ptx::load_shared<float>(address_ + kScalesWord * 16 + 4 + static_cast<uint32_t>(w) * 4);
  }

  TANDEM_DEVICE void set(const TilePlace& place) const { ptx::store_shared(address_, place); }
  TANDEM_DEVICE void set(const TileRows& rows) const { ptx::store_shared(address_ + 16, rows); }
  TANDEM_DEVICE void set(const TileKeys& keys) const { ptx::store_shared(address_ + 32, keys); }
  TANDEM_DEVICE void set(const TileSeen& seen) const { ptx::store_shared(address_ + 48, seen); }
  TANDEM_DEVICE void set(int w, const ConsumerBlocks& blocks) const {
    ptx::store_shared(address_ + 64 + static_cast<uint32_t>(w) * 16, blocks);
  }
  TANDEM_DEVICE void set_sequence(int sequence) const { ptx::store_shared(address_ + kScalesWord * 16, sequence); }
  TANDEM_DEVICE void set_q_scale(int w, float scale) const {
    ptx::store_shared(address_ + kScalesWord * 16 + 4 + static_cast<uint32_t>(w) * 4, scale);
  }

 private:
  uint32_t address_;
};

// Walks the work tiles of a block, as each of the scheduler's readers does. At most kTileStages are open: come by
// next() and not yet released.
template <typename Traits>
class TileReader {
 public:
  // Waits for the next tile; false: there is no more.
  TANDEM_DEVICE bool next() {
    wait(Traits::kTileFull, ahead_);
    ahead_.advance();
    return slot().place().valid != 0;
  }
  // Of the tile that next() has brought.
  TANDEM_DEVICE TileSlot<Traits> slot() const { return TileSlot<Traits>(latest()); }

  // A whole warp: done with the oldest tile that is open.
  TANDEM_DEVICE void release_by_warp() {
    release(Traits::kTileEmpty, oldest_);
    oldest_.advance();
  }
  // One thread that has no other tile open.
  TANDEM_DEVICE void release_by_thread() { ptx::mbarrier_arrive(barrier_at(Traits::kTileEmpty, latest())); }

 private:
  TANDEM_DEVICE int latest() const { return (ahead_.index == 0 ? Traits::kTileStages : ahead_.index) - 1; }

  PipelineState<Traits::kTileStages> ahead_, oldest_;
};

}  // namespace tandem::sm90
