#pragma once

#include <cstdint>

#include "core/mask.h"
#include "sm90/forward/params.h"
#include "sm90/forward/traits.h"
#include "sm90/forward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/softmax.cuh"

// What a consumer warpgroup keeps in registers, and the turns that it takes with the others.
namespace tandem::sm90 {

// What e4m3 adds. The tensor core sums P V of promotion_blocks key blocks, with fewer bits than fp32 has, and the sum
// then joins O; in the same way a row's sum of P as it was rounded.
template <typename Traits, bool kFp8 = Traits::kFp8>
struct Fp8State {
  float acc_pv[Traits::kProductColumns / 2];  // (64, kHeadDimV), and sums of P
  float acc_ones[4];                          // kOnesApart: sums of P
  uint32_t frag_q[Traits::kHeadDim / 32][4];  // kQInRegisters: (64, kHeadDim)
  int pv_blocks = 0;                          // in acc_pv
  float rounded_sum[2];                       // of the thread's rows: P as it was rounded
  bool sum_begun;                             // O in shared memory is this tile's
  float sum_rescale[2];                       // kSumIsBf16: what this block has the rows' O multiplied by
  float q_scale;      // of the tile: the scale of Q, and what turns products into exponents or into what is soft-capped
  float score_scale;  // of the block: that times K's
  float v_scale;      // what acc_pv is in units of: the scale of its last block of V
  float next_v_scale;   // of the block that P is made of, whose P V comes next
  float smallest_unit;  // kOInShared: of this tile's acc_pv; two_levels.cuh
};
template <typename Traits>
struct Fp8State<Traits, false> {};

template <typename Traits>
struct ConsumerState : Fp8State<Traits> {
  static constexpr int kORegisters = Traits::kOInShared ? 1 : Traits::kHeadDimV / 2;
  static constexpr int kPSteps = Traits::kBlockN * Traits::kElementBytes / 32;  // k-steps of P V

  float acc_s[Traits::kBlockN / 2];  // (64, kBlockN): S, then P
  float acc_o[kORegisters];          // (64, kHeadDimV): O, not normalized; anything before the tile's first P V
  uint32_t frag_p[kPSteps][4];       // (64, kBlockN) in the element type
  SoftmaxRows rows;
  bool o_begun;  // P V of this tile has been issued, so that acc_o holds O; kSumIsBf16: acc_pv what belongs to O
  BasicRowInterval<int> visible[2];  // 16 bits: what this thread's rows see, for masked blocks
  PipelineState<Traits::kKStages> k_pipe;
  PipelineState<Traits::kVStages> v_pipe;
};

// O of a tile that is finished.
template <typename Traits>
TANDEM_DEVICE auto& finished_o(ConsumerState<Traits>& state) {
  if constexpr (Traits::kOInShared) {
    return state.acc_pv;
  } else {
    return state.acc_o;
  }
}

// What a consumer keeps of a work tile while it is at it; the rest it reads from the slot.
template <typename Traits>
struct ConsumerTile {
  TileSlot<Traits> slot;
  ConsumerBlocks blocks;
  int above, below;  // blocks that only other consumers visit, before this one's and after
  int q;             // number of Q's place
  TANDEM_DEVICE bool visits() const { return blocks.begin < blocks.end; }
  TANDEM_DEVICE bool is_unmasked() const { return blocks.full_begin == blocks.begin && blocks.full_end == blocks.end; }
  TANDEM_DEVICE bool is_open() const { return below >= 0; }  // or no tile
};

// Ping-pong: one warpgroup issues its matrix products while the others are at their exponentials. HAZARD: all take as
// many turns, or one waits for ever.
template <typename Traits>
TANDEM_DEVICE void take_turn(int w) {
  if constexpr (Traits::kPingPong) ptx::named_barrier_sync(kTurnBarrier + w, 2 * ptx::kWarpgroupThreads);
}
template <typename Traits>
TANDEM_DEVICE void pass_turn(int w) {
  const int next = w == Traits::kConsumers - 1 ? 0 : w + 1;
  if constexpr (Traits::kPingPong) ptx::named_barrier_arrive(kTurnBarrier + next, 2 * ptx::kWarpgroupThreads);
}

}  // namespace tandem::sm90
