#pragma once

#include <cstdint>

#include "sm90/forward/attend.cuh"
#include "sm90/forward/finish.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/mbarrier.cuh"

// A consumer warpgroup: its part of each work tile.
namespace tandem::sm90 {

// Consumer w of one work tile. Key blocks run from the last to the first; those that only other consumers visit are
// released unread.
template <typename Traits>
TANDEM_DEVICE void consume_tile(ConsumerState<Traits>& state, const ForwardParams& params, TileSlot<Traits> slot,
                                int w) {
  const TileKeys tile = slot.keys();
  const ConsumerBlocks blocks = slot.blocks(w);
  skip_blocks(state, tile.end - blocks.end, w);
  clear(state.acc_o);
  reset(state.rows);
  if (blocks.begin < blocks.end) {
    first_block(state, params, slot, blocks, w);
    int n_block = blocks.end - 2;
    attend_blocks<Traits, true>(state, params, n_block, blocks.full_end, w);
    attend_blocks<Traits, false>(state, params, n_block, blocks.full_begin, w);
    attend_blocks<Traits, true>(state, params, n_block, blocks.begin, w);
    last_product(state, params, slot, w);
  } else {
    finish_rows(state, params, slot, w);
  }
  skip_blocks(state, blocks.begin - tile.begin, w);
  hand_over_o(state, w);
}

// Warpgroup w of the consumers.
template <typename Traits>
TANDEM_DEVICE void consume(const ForwardParams& params, int w) {
  ConsumerState<Traits> state;
  TileReader<Traits> reader;
  uint32_t q_phase = 0;
  if (w == Traits::kConsumers - 1) pass_turn<Traits>(w);  // consumer 0 begins
  while (reader.next()) {
    ptx::mbarrier_wait(barrier_at(Traits::kQFull, w), q_phase);
    consume_tile(state, params, reader.slot(), w);
    q_phase ^= 1;
    reader.release_by_warp();
  }
  if (w == 0) take_turn<Traits>(w);  // the turn that the last consumer has passed last
}

}  // namespace tandem::sm90
