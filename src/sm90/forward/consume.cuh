#pragma once

#include <cstdint>

#include "sm90/forward/attend.cuh"
#include "sm90/forward/finish.cuh"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/tile/pipeline.cuh"

// A consumer warpgroup: its part of each work tile.
namespace tandem::sm90 {

// One consumer on its way from tile to tile. A tile is open while its last P V is still to come. If it can, it closes
// it together with the first S of the next tile: Q must have two stages, and V a stage for the last block, which waits
// there meanwhile, and for each block between, other consumers'. HAZARD: with more of these the load thread would wait
// for that stage before it brings K of the first S. And with turns, the first S below more than one would wait for a
// turn that another consumer, done with its part of the next tile, takes only when it has the Q after that; which goes
// where O of the open tile is to leave from.
template <typename Traits>
class Consumer {
 public:
  TANDEM_DEVICE Consumer(const ForwardParams& params, int w) : params_(params), w_(w) { q_pipe_.index = w; }

  TANDEM_DEVICE void run() {
    if (w_ == Traits::kConsumers - 1) pass_turn<Traits>(w_);  // consumer 0 begins
    ConsumerTile<Traits> tile = no_tile();
    for (;;) {
      if (Traits::kQStages == 1 && tile.is_open()) {
        close(tile);
        tile = no_tile();
      }
      if (!reader_.next()) break;
      const ConsumerTile<Traits> next = receive();
      if (Traits::kQStages > 1 && tile.below == 0 && next.visits() && next.above <= kMostBetween) {
        close_and_begin(tile, next);
      } else {
        if (tile.is_open()) close(tile);
        begin(next);
      }
      tile = next.visits() ? next : no_tile();
      if (tile.is_open()) attend_tile(state_, params_, tile, w_);
    }
    if (tile.is_open()) close(tile);
    if (w_ == 0) take_turn<Traits>(w_);  // the turn that the last consumer has passed last
  }

 private:
  static constexpr int kMostBetween = Traits::kPingPong ? 1 : Traits::kVStages - 1;

  TANDEM_DEVICE static ConsumerTile<Traits> no_tile() { return {TileSlot<Traits>(0), {0, 0, 0, 0}, 0, -1, 0}; }

  // The tile that has come, with its Q.
  TANDEM_DEVICE ConsumerTile<Traits> receive() {
    const TileSlot<Traits> slot = reader_.slot();
    const TileKeys keys = slot.keys();
    const ConsumerBlocks blocks = slot.blocks(w_);
    const int q = q_pipe_.index;
    wait(Traits::kQFull, q_pipe_);
    q_pipe_.template advance_by<Traits::kConsumers>();
    return {slot, blocks, keys.end - blocks.end, blocks.begin - keys.begin, q};
  }

  // The tile's first S, or all of a tile that shows this consumer no key.
  TANDEM_DEVICE void begin(const ConsumerTile<Traits>& tile) {
    skip_blocks(state_, tile.above, w_);
    clear_results();
    if (tile.visits()) {
      first_product<Traits, false>(state_, params_, tile, w_, [&] { find_visible(tile); });
    } else {
      finish_rows(state_, params_, tile.slot, w_);
      hand_over(tile);
    }
  }

  // The last P V of a tile, and its results.
  TANDEM_DEVICE void close(const ConsumerTile<Traits>& tile) {
    last_product<Traits>(state_, [&] { finish_rows(state_, params_, tile.slot, w_); });
    skip_blocks(state_, tile.below, w_);
    hand_over(tile);
  }

  TANDEM_DEVICE void close_and_begin(const ConsumerTile<Traits>& tile, const ConsumerTile<Traits>& next) {
    TANDEM_NO_UNROLL
    for (int i = 0; i < next.above; ++i) skip_k(state_, w_);
    first_product<Traits, true>(state_, params_, next, w_, [&] {
      finish_rows(state_, params_, tile.slot, w_);
      find_visible(next);
    });
    TANDEM_NO_UNROLL
    for (int i = 0; i < next.above; ++i) skip_v(state_);
    hand_over(tile);
    clear_results();
  }

  TANDEM_DEVICE void hand_over(const ConsumerTile<Traits>& tile) {
    hand_over_o(state_, params_, tile.q, w_);
    reader_.release_by_warp();
  }

  // For the masked blocks; in e4m3, whose accumulators leave no registers for it, each finds it anew.
  TANDEM_DEVICE void find_visible(const ConsumerTile<Traits>& tile) {
    if constexpr (!Traits::kFp8) {
      if (!tile.is_unmasked()) find_visible_keys(state_.visible, params_, tile, w_);
    }
  }

  TANDEM_DEVICE void clear_results() {
    state_.o_begun = false;
    if constexpr (Traits::kFp8) clear_levels(state_);
    reset(state_.rows);
  }

  const ForwardParams& params_;
  const int w_;
  ConsumerState<Traits> state_;
  TileReader<Traits> reader_;
  PipelineState<Traits::kQPlaces> q_pipe_;
};

// Warpgroup w of the consumers.
template <typename Traits>
TANDEM_DEVICE void consume(const ForwardParams& params, int w) {
  Consumer<Traits>(params, w).run();
}

}  // namespace tandem::sm90
