#include "forward/planted.h"

#include "forward/problems.h"

namespace tandem::model {
namespace {

constexpr InstanceId kInstance = {
    2, TANDEM_BF16};                 // headdim 128: two consumers, two places for Q, three for K, two for V; lazy
constexpr int kTiles = 3;            // of the one block
constexpr int kKeyBlocks = 7;        // of each
constexpr int kStores = kTiles * 2;  // each tile's from both consumers
constexpr int kCleanUpWarp = 2;
constexpr int kConsumerWarp = 4;      // the first of consumer 0
constexpr int kConsumerThread = 133;  // lane 5 of it

// Later than all that was about to be issued.
Fault slow_stores() {
  return delay(skip(Op::kTmaStore), 1'000);
}

std::vector<PlantedBug> barrier_bugs() {
  return {
      {"missing_arrive",
       "warp 4 releases K's first stage once too few",
       {only(of_warp(skip(Op::kBarrierArrive, "k_empty[0]"), kConsumerWarp), 0)},
       ReportKind::kDeadlock,
       {"k_empty[0]: phase 0, 1 of 8 arrivals", "warp 0 (load)", "wait for k_empty[0], parity 0"}},
      {"wrong_arrival_count",
       "o_full is initialized with 5 arrivals",
       {add(skip(Op::kBarrierInit, "o_full[0]"), 1)},
       ReportKind::kDeadlock,
       {"warp 3 (store)", "o_full[0]: phase 0, 1 of 5 arrivals"}},
      {"missing_turn",
       "consumer 1 never passes the first turn",
       {only(skip(Op::kNamedArrive, "turn[0]"), 0)},
       ReportKind::kDeadlock,
       {"turn[0]: 128 of 256 threads have come", "wait at turn[0]", "consumer 0"}},
      {"skipped_turn",
       "consumer 0 issues its first products without waiting for its turn",
       {only(skip(Op::kNamedSync, "turn[0]"), 0)},
       ReportKind::kOverArrival,
       {"turn[0]", "has come already", "(consumer 1)"}},
      {"double_release",
       "warp 4 releases K's stages twice",
       {repeat(of_warp(skip(Op::kBarrierArrive, "k_empty"), kConsumerWarp))},
       ReportKind::kOverArrival,
       {"second arrival at k_empty[0]", "warp 4 (consumer 0)"}},
      {"wrong_slot",
       "the clean-up warp releases the second tile's slot instead of the first's",
       {only(add(of_warp(skip(Op::kBarrierArrive, "tile_empty[0]"), kCleanUpWarp), 8), 0)},
       ReportKind::kOverArrival,
       {"second arrival at tile_empty[1]", "warp 2 (clean-up)"}},
      {"double_expect",
       "the scheduler announces Q twice",
       {repeat(skip(Op::kBarrierExpect, "q_full[0]"))},
       ReportKind::kOverArrival,
       {"q_full[0] has had all 1 arrivals", "warp 1 (scheduler)"}},
      {"double_turn",
       "consumer 1 passes the turn twice",
       {repeat(skip(Op::kNamedArrive, "turn[0]"))},
       ReportKind::kOverArrival,
       {"turn[0]", "has come already"}},
      {"no_init",
       "v_empty[1] is not initialized",
       {skip(Op::kBarrierInit, "v_empty[1]")},
       ReportKind::kBarrierMisuse,
       {"v_empty[1]", "not an initialized mbarrier"}},
      {"thread_counts",
       "the turn's arrivers count 288 threads, its waiters 256",
       {add(skip(Op::kNamedArrive, "turn"), 32)},
       ReportKind::kBarrierMisuse,
       {"turn[", "threads, another one"}},
      {"thread_skips_barrier",
       "thread 133 goes past the epilogue's barrier",
       {of_thread(skip(Op::kNamedSync, "epilogue[0]"), kConsumerThread)},
       ReportKind::kCollective,
       {"warp 4 (consumer 0)", "other threads of the warp are in"}},
      {"warp_skips_wgmma",
       "warp 4 leaves out a product",
       {only(of_warp(skip(Op::kWgmma, "", "issue_qk"), kConsumerWarp), 3)},
       ReportKind::kCollective,
       {"wgmma", "at attend.cuh", "(issue_qk)"}},
      {"thread_skips_mma",
       "thread 133 leaves out a product of the rare path",
       {only(of_thread(skip(Op::kMma), kConsumerThread), 0)},
       ReportKind::kCollective,
       {"warp 4 (consumer 0)", "mma", "warp_scores.cuh"}},
      {"registers",
       "consumers ask for 240 registers",
       {add(skip(Op::kSetMaxRegisters), 8)},
       ReportKind::kRegisterBudget,
       {"wait for 240 registers", "setmaxnreg"}},
      {"no_grid_wait",
       "the scheduler draws a tile without waiting for the grid that clears the counter",
       {skip(Op::kGridWait)},
       ReportKind::kMissingGridWait,
       {"warp 1 (scheduler)", "workspace + 0", "atomic"}},
  };
}

std::vector<PlantedBug> copy_bugs() {
  return {
      {"too_many_bytes_announced",
       "16 bytes more of V are announced than its boxes have",
       {add(skip(Op::kBarrierExpect, "v_full[1]"), 16)},
       ReportKind::kWrongByteCount,
       {"v_full[1]: phase 0, 0 of 1 arrivals and 16 bytes to come"}},
      {"too_few_bytes_announced",
       "16 bytes less of V are announced than its boxes have",
       {add(skip(Op::kBarrierExpect, "v_full[1]"), -16)},
       ReportKind::kWrongByteCount,
       {"v_full[1] gets 16 bytes more in phase 0"}},
      {"missing_box",
       "Q's box is not loaded",
       {only(skip(Op::kTmaLoad, "q[1]"), 0)},
       ReportKind::kWrongByteCount,
       {"q_full[1]: phase 0, 0 of 1 arrivals and 8192 bytes to come"}},
      {"box_loaded_twice",
       "K's first box is loaded twice, and comes after the second",
       {only(repeat(skip(Op::kTmaLoad, "k[0]")), 0), only(delay(skip(Op::kTmaLoad, "k[0]"), 1'000), 0)},
       ReportKind::kRace,
       {"16 bytes at k[0]", "written in tma_load", "no barrier orders that before"}},
      {"no_wait_for_k",
       "nobody waits for K's first stage",
       {skip(Op::kBarrierWait, "k_full[0]")},
       ReportKind::kRace,
       {"16 bytes at k[0]", "consumer", "wgmma"}},
      {"no_wait_for_k_that_comes_late",
       "nobody waits for K's first stage, which comes late",
       {skip(Op::kBarrierWait, "k_full[0]"), late("k[0]")},
       ReportKind::kRace,
       {"16 bytes at k[0]", "a copy is under way", "consumer", "wgmma"}},
      {"phase_twice",
       "consumers wait for V's second stage with the parity of the time before",
       {only(add(skip(Op::kBarrierWait, "v_full[1]"), 1), 1)},
       ReportKind::kWrongPhase,
       {"v_full[1], parity 0", "the same parity, for phase 0", "consumer"}},
      {"no_fence_of_barriers",
       "the barriers are initialized and not fenced towards the copy engine",
       {skip(Op::kFenceBarrierInit)},
       ReportKind::kMissingProxyFence,
       {"initialized by", "fence_mbarrier_init()", "tma_load"}},
      {"no_block_sync",
       "barriers are used before all threads know that they are initialized",
       {skip(Op::kNamedSync, "block_sync")},
       ReportKind::kBarrierMisuse,
       {"block 0"}},
      {"wrong_parity",
       "consumers wait for V's second stage, which comes late, with the other parity",
       {add(skip(Op::kBarrierWait, "v_full[1]"), 1), late("v[1]")},
       ReportKind::kRace,
       {"16 bytes at v[1]", "a copy is under way", "consumer", "wgmma"}},
      {"no_wait_for_landing",
       "the clean-up warp does not wait for V",
       {skip(Op::kBarrierWait, "v_landed[0]")},
       ReportKind::kRace,
       {"at v[0]", "warp 2 (clean-up)"}},
      {"no_wait_for_v_empty",
       "the fourth V is loaded while the second is in use",
       {only(skip(Op::kBarrierWait, "v_empty[1]"), 1)},
       ReportKind::kRace,
       {"bytes at v[1]", "warp 0 (load)"}},
      {"no_wait_for_o_full",
       "the store warp does not wait for O; Q, in its place, comes late",
       {skip(Op::kBarrierWait, "o_full[0]"), late("q[0]"), slow_stores()},
       ReportKind::kRace,
       {"bytes at q[0]", "store"}},
      {"no_order_of_o",
       "a lane hands its warp's part of O over before the others have written theirs",
       {skip(Op::kWarpSync, "", "hand_over_o")},
       ReportKind::kRace,
       {"at q["}},
      {"no_wait_for_read",
       "the store warp gives Q's place back while O is still read",
       {skip(Op::kBulkWaitRead), slow_stores()},
       ReportKind::kRace,
       {"at q[0]", "which a bulk store reads", "warp 1 (scheduler)", "tma_load"}},
      {"no_fence_of_o",
       "a thread hands its part of O over without a fence towards the copy engine",
       {of_thread(skip(Op::kFenceProxy), kConsumerThread)},
       ReportKind::kMissingProxyFence,
       {"at q[0]", "warp 3 (store)", "tma_store"}},
      {"no_fence_of_v",
       "the clean-up warp hands V over without a fence towards wgmma",
       {skip(Op::kFenceProxy, "", "clean_tiles")},
       ReportKind::kMissingProxyFence,
       {"at v[0]", "consumer", "wgmma"}},
      {"slot_not_written",
       "the scheduler hands over a tile slot it has not written",
       {skip(Op::kStoreShared, "tile_slot[0] + 16")},
       ReportKind::kUnwrittenRead,
       {"16 bytes at tile_slot[0] + 16", "load_shared"}},
      {"no_commit",
       "the last store of O is not committed",
       {only(skip(Op::kBulkCommit), kStores - 1)},
       ReportKind::kUnfinishedAtExit,
       {"store", "bulk_commit() has not closed"}},
      {"no_wait_for_stores",
       "the store warp does not wait for the last store",
       {only(skip(Op::kBulkWaitRead), kStores - 1), skip(Op::kBulkWait)},
       ReportKind::kUnfinishedAtExit,
       {"store", "may still read shared memory"}},
      {"negative_row",
       "O is stored 200 rows further up",
       {add(skip(Op::kTmaStore), -200)},
       ReportKind::kTensorMap,
       {"coordinate 1 is negative", "tma_store"}},
  };
}

std::vector<PlantedBug> product_bugs() {
  constexpr int64_t kStrideOf1024 = int64_t{1024 / 16} << 32;
  return {
      {"no_wait_for_s",
       "softmax of the first block does not wait for S",
       {skip(Op::kWgmmaWait, "", "first_product")},
       ReportKind::kTouchedAccumulator,
       {"consumer", "softmax.cuh", "reads a register of a wgmma"}},
      {"no_wait_for_o",
       "O is rescaled and P overwritten before the last P V but one is done",
       {only(skip(Op::kWgmmaWait, "", "operator()"), kTiles * (kKeyBlocks - 1) - 1)},
       ReportKind::kTouchedAccumulator,
       {"consumer", "was written between the wgmma and this wait"}},
      {"no_wait_for_last_product",
       "O is handed over before the last P V is done",
       {skip(Op::kWgmmaWait, "", "last_product")},
       ReportKind::kTouchedAccumulator,
       {"consumer", "reads a register of a wgmma"}},
      {"no_wgmma_fence",
       "no fence between softmax, which writes S's registers, and the next product",
       {skip(Op::kWgmmaFence, "", "attend_blocks")},
       ReportKind::kMissingWgmmaFence,
       {"an accumulator, register", "changed since the last wgmma_fence()"}},
      {"base_offset",
       "a descriptor with a base offset",
       {add(skip(Op::kWgmma, "", "issue_qk"), int64_t{1} << 49)},
       ReportKind::kDescriptor,
       {"descriptor of B", "base offset"}},
      {"row_offset",
       "a descriptor of V that begins one row further on",
       {add(skip(Op::kWgmma, "", "issue_pv_16bit"), 128 / 16)},
       ReportKind::kDescriptor,
       {"inside a repetition of the 128-byte swizzle"}},
      {"no_stride",
       "a descriptor without a stride",
       {add(skip(Op::kWgmma, "", "issue_qk"), -kStrideOf1024)},
       ReportKind::kDescriptor,
       {"stride byte offset is 0"}},
      {"beyond_shared",
       "a descriptor that reaches past the end of shared memory",
       {add(skip(Op::kWgmma, "", "issue_pv_16bit"), 68 * 1024 / 16)},
       ReportKind::kOutOfBounds,
       {"outside of shared memory", "wgmma"}},
      {"lse_out_of_bounds",
       "LSE is stored 4 KB further on",
       {add(skip(Op::kStoreGlobal, "", "finish_rows"), 4096)},
       ReportKind::kOutOfBounds,
       {"4 bytes at lse + ", "finish_rows"}},
      {"misaligned_slot",
       "the tile slot is written 4 bytes further on",
       {add(skip(Op::kStoreShared, "tile_slot[0]"), 4)},
       ReportKind::kMisaligned,
       {"tile_slot[0] + 4 is not a multiple of 16", "scheduler"}},
      {"slot_over_barrier",
       "the second word of the tile slot is written 384 bytes further on, among the barriers",
       {add(skip(Op::kStoreShared, "tile_slot[0] + 16"), 384)},
       ReportKind::kBarrierMisuse,
       {"are an mbarrier's", "warp 1 (scheduler)"}},
  };
}

}  // namespace

const std::vector<PlantedBug>& planted_bugs() {
  static const std::vector<PlantedBug> bugs = [] {
    std::vector<PlantedBug> all;
    for (const auto& some : {barrier_bugs(), copy_bugs(), product_bugs()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }();
  return bugs;
}

optest::Problem planted_problem() {
  optest::Problem problem = dense_problem(kInstance, kInstance.block_m(), 900, kTiles);
  problem.seqused_k = {890};
  return problem;
}

const optest::Inputs& planted_inputs() {
  static const optest::Inputs inputs = [] {
    optest::Inputs made = optest::random_inputs(planted_problem(), 1);
    grow_scores(planted_problem(), kInstance, [](int64_t row) { return row % 64 == 5; }, 20, made);
    return made;
  }();
  return inputs;
}

}  // namespace tandem::model
