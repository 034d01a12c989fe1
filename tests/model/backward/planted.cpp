#include "backward/planted.h"

#include "backward/problems.h"

namespace tandem::model {
namespace {

constexpr int kRowOf128 = sm90::find_backward_tiles(128, 128, false);
constexpr int kLoadWarp = 0;
constexpr int kCleanUpWarp = 1;
constexpr int kStoreWarp = 2;
constexpr int kConsumerWarp = 5;       // the second of consumer 0
constexpr int kOtherConsumerWarp = 8;  // the first of consumer 1
constexpr int kConsumerThread = 133;   // lane 5 of warp 4

Fault no_wait(const std::string& barrier) {
  return skip(Op::kBarrierWait, barrier);
}
Fault no_arrival(const std::string& barrier) {
  return skip(Op::kBarrierArrive, barrier);
}
Fault no_expect(const std::string& barrier) {
  return skip(Op::kBarrierExpect, barrier);
}

std::vector<PlantedBug> missing_waits() {
  constexpr ReportKind kRace = ReportKind::kRace;
  return {
      {"wait_k_full", "consumers do not wait for K", {no_wait("k_full")}, kRace, {"at k[0]", "issue_s"}},
      {"wait_v_full", "consumers do not wait for V", {no_wait("v_full")}, kRace, {"at v[0]"}},
      {"wait_k_landed", "the clean-up warp does not wait for K", {no_wait("k_landed")}, kRace, {"clean-up"}},
      {"wait_v_landed", "the clean-up warp does not wait for V", {no_wait("v_landed")}, kRace, {"clean-up"}},
      {"wait_kv_empty", "K comes before dK has left its place", {no_wait("kv_empty")}, kRace, {"at k[0]", "load"}},
      {"wait_grads_full", "dK leaves before it is there", {only(no_wait("grads_full"), 1)}, kRace, {"store"}},
      {"wait_q_full", "consumers do not wait for Q", {no_wait("q_full")}, kRace, {"consumer"}},
      {"wait_q_landed", "the clean-up warp does not wait for Q", {no_wait("q_landed")}, kRace, {}},
      {"wait_q_empty", "Q comes before dK is done with its stage", {no_wait("q_empty")}, kRace, {"load"}},
      {"wait_do_full", "consumers do not wait for dO", {no_wait("do_full")}, kRace, {"consumer"}},
      {"wait_do_landed", "the clean-up warp does not wait for dO", {no_wait("do_landed")}, kRace, {"clean-up"}},
      {"wait_tile_empty", "a slot is set while others read it", {no_wait("tile_empty")}, kRace, {"tile_slot"}},
      {"wait_tile_full_load",
       "the load thread does not wait for the third tile's record",
       {only(of_warp(no_wait("tile_full[0]"), kLoadWarp), 1)},
       kRace,
       {"tile_slot"}},
      {"wait_tile_full_clean_up",
       "the clean-up warp does not wait for the third tile",
       {only(of_warp(no_wait("tile_full[0]"), kCleanUpWarp), 1)},
       kRace,
       {"tile_slot"}},
      {"wait_tile_full_store",
       "the store warp does not wait for the third tile",
       {only(of_warp(no_wait("tile_full[0]"), kStoreWarp), 1)},
       kRace,
       {"tile_slot"}},
      {"wait_tile_full_consumer",
       "a consumer's warp does not wait for the third tile",
       {only(of_warp(no_wait("tile_full[0]"), kConsumerWarp), 1)},
       kRace,
       {"tile_slot"}},
      {"meet_ds", "consumers do not wait for each other's dS", {skip(Op::kNamedSync, "ds_written")}, kRace, {"at ds["}},
      {"meet_epilogue",
       "dK is written over K while the other consumer reads it",
       {skip(Op::kNamedSync, "epilogue")},
       kRace,
       {"at k[0]"}},
      {"wait_grid",
       "the load thread does not wait for the kernels before",
       {skip(Op::kGridWait, "", "run")},
       ReportKind::kMissingGridWait,
       {"load"}},
      {"wait_dq_read",
       "dQ is staged again before its reduction has read it",
       {skip(Op::kBulkWaitRead, "", "acquire_dq_place")},
       kRace,
       {"at dq["}},
      {"wait_gradients_read",
       "K's place is given back before dK has left it",
       {skip(Op::kBulkWaitRead, "", "store_gradients")},
       kRace,
       {"at k[0]"}},
      {"wait_dq_written",
       "consumers end before their reductions do",
       {skip(Op::kBulkWait, "", "run")},
       ReportKind::kUnfinishedAtExit,
       {"consumer"}},
  };
}

std::vector<PlantedBug> missing_arrivals() {
  constexpr ReportKind kDeadlock = ReportKind::kDeadlock;
  return {
      {"arrive_kv_empty",
       "the store warp does not give K's place back",
       {no_arrival("kv_empty")},
       kDeadlock,
       {"kv_empty[0]: phase 0, 1 of 1 arrivals"}},
      {"arrive_grads_full",
       "a warp does not say that its dK is there",
       {of_warp(no_arrival("grads_full"), kConsumerWarp)},
       kDeadlock,
       {"grads_full[0]: phase 0, 1 of 8 arrivals"}},
      {"arrive_q_empty",
       "a warp does not release Q's stages",
       {of_warp(no_arrival("q_empty"), kConsumerWarp)},
       kDeadlock,
       {"q_empty[", "1 of 8 arrivals"}},
      {"arrive_do_empty",
       "a warp does not release dO's stages",
       {of_warp(no_arrival("do_empty"), kOtherConsumerWarp)},
       kDeadlock,
       {"do_empty[", "1 of 8 arrivals"}},
      {"arrive_tile_empty_consumer",
       "a consumer's warp does not release the slots",
       {of_warp(no_arrival("tile_empty"), kConsumerWarp)},
       kDeadlock,
       {"tile_empty[0]: phase 0, 1 of 10 arrivals"}},
      {"arrive_tile_empty_store",
       "the store warp does not release the slots",
       {of_warp(no_arrival("tile_empty"), kStoreWarp)},
       kDeadlock,
       {"tile_empty[0]: phase 0, 1 of 10 arrivals"}},
      {"arrive_tile_empty_clean_up",
       "the clean-up warp does not release the slots",
       {of_warp(no_arrival("tile_empty"), kCleanUpWarp)},
       kDeadlock,
       {"tile_empty[0]: phase 0, 1 of 10 arrivals"}},
      {"arrive_tile_full",
       "nobody hears that there is no more work",
       {no_arrival("tile_full")},
       kDeadlock,
       {"tile_full[0]", "1 of 1 arrivals"}},
      {"arrive_k_full",
       "the clean-up warp does not pass K on",
       {of_warp(no_arrival("k_full"), kCleanUpWarp)},
       kDeadlock,
       {"k_full[0]", "1 of 1 arrivals"}},
      {"arrive_v_full",
       "the clean-up warp does not pass V on",
       {of_warp(no_arrival("v_full"), kCleanUpWarp)},
       kDeadlock,
       {"v_full[0]", "1 of 1 arrivals"}},
      {"arrive_q_full",
       "the clean-up warp does not pass Q on",
       {of_warp(no_arrival("q_full"), kCleanUpWarp)},
       kDeadlock,
       {"q_full[", "1 of 1 arrivals"}},
      {"arrive_do_full",
       "the clean-up warp does not pass dO on",
       {of_warp(no_arrival("do_full"), kCleanUpWarp)},
       kDeadlock,
       {"do_full[", "1 of 1 arrivals"}},
      {"expect_q_full",
       "the bytes of Q and LSE are not announced",
       {no_expect("q_full")},
       ReportKind::kWrongByteCount,
       {"q_full["}},
      {"expect_do_full",
       "the bytes of dO and delta are not announced",
       {no_expect("do_full")},
       ReportKind::kWrongByteCount,
       {"do_full["}},
      {"expect_k_landed",
       "the bytes of K are not announced",
       {no_expect("k_landed")},
       ReportKind::kWrongByteCount,
       {"k_landed[0]"}},
      {"expect_tile_full",
       "the bytes of a record are not announced",
       {no_expect("tile_full")},
       ReportKind::kWrongByteCount,
       {"tile_full[0]"}},
      {"double_release",
       "a warp releases Q's stages twice",
       {repeat(of_warp(no_arrival("q_empty"), kConsumerWarp))},
       ReportKind::kOverArrival,
       {"second arrival at q_empty"}},
  };
}

std::vector<PlantedBug> missing_fences() {
  constexpr ReportKind kFence = ReportKind::kMissingProxyFence;
  constexpr ReportKind kRace = ReportKind::kRace;
  return {
      {"fence_ds",
       "a thread hands its part of dS over without a fence towards wgmma",
       {of_thread(skip(Op::kFenceProxy, "", "run_steps"), kConsumerThread)},
       kFence,
       {"at ds["}},
      {"fence_dq",
       "a thread's part of dQ is sent without a fence towards the copy engine",
       {of_thread(skip(Op::kFenceProxy, "", "finish_steps"), kConsumerThread)},
       kFence,
       {"at dq["}},
      {"fence_gradients",
       "a thread's part of dK is stored without a fence towards the copy engine",
       {of_thread(skip(Op::kFenceProxy, "", "hand_over_gradients"), kConsumerThread)},
       kFence,
       {"tma_store"}},
      {"fence_cleaned",
       "cleared rows are passed on without a fence towards wgmma",
       {skip(Op::kFenceProxy, "", "pass_on")},
       kFence,
       {"clear_rows"}},
      {"fence_barriers",
       "the barriers are initialized and not fenced towards the copy engine",
       {skip(Op::kFenceBarrierInit)},
       kFence,
       {"fence_mbarrier_init()"}},
      {"sync_block",
       "barriers are used before all threads know that they are initialized",
       {skip(Op::kNamedSync, "block_sync", "backward_kernel")},
       ReportKind::kBarrierMisuse,
       {"initialized"}},
      {"sync_dq_sent",
       "a lane sends its warp's dQ before the others have staged theirs",
       {skip(Op::kWarpSync, "", "send_dq")},
       kRace,
       {"at dq["}},
      {"sync_dq_staged",
       "dQ is staged again before the lane that has sent it knows that it is read",
       {skip(Op::kWarpSync, "", "acquire_dq_place")},
       kRace,
       {"at dq["}},
      {"sync_gradients",
       "a lane hands its warp's dK over before the others have written theirs",
       {skip(Op::kWarpSync, "", "hand_over_gradients")},
       kRace,
       {"store_accumulator"}},
      {"sync_cleaned",
       "a lane passes a tile on before the others have cleared their part",
       {skip(Op::kWarpSync, "", "pass_on")},
       kRace,
       {"clear_rows"}},
      {"sync_slot",
       "a lane releases the slot while others read it",
       {skip(Op::kWarpSync, "", "release_by_warp")},
       kRace,
       {"tile_slot"}},
  };
}

std::vector<PlantedBug> others() {
  return {
      {"parity_q_full",
       "a consumer waits for Q's second stage with the parity of the time before",
       {only(add(no_wait("q_full[1]"), 1), 1)},
       ReportKind::kWrongPhase,
       {"q_full[1]", "consumer"}},
      {"parity_k_full",
       "consumers wait for the second tile's K with the first's parity",
       {only(add(no_wait("k_full"), 1), 1)},
       ReportKind::kWrongPhase,
       {"k_full[0]", "consumer"}},
      {"parity_kv_empty",
       "K's place is waited for with the other parity",
       {only(add(no_wait("kv_empty"), 1), 1)},
       ReportKind::kWrongPhase,
       {"kv_empty[0]", "load"}},
      {"parity_tile_full",
       "the store warp waits for the third tile with the first's parity",
       {only(add(of_warp(no_wait("tile_full[0]"), kStoreWarp), 1), 1)},
       ReportKind::kWrongPhase,
       {"tile_full[0]", "store"}},
      {"wait_wgmma_s",
       "P is made before S is done",
       {skip(Op::kWgmmaWait, "", "run_steps")},
       ReportKind::kTouchedAccumulator,
       {"consumer"}},
      {"wait_wgmma_last",
       "dK is written before it is done",
       {only(skip(Op::kWgmmaWait, "", "finish_steps"), 1)},
       ReportKind::kTouchedAccumulator,
       {"consumer"}},
      {"fence_wgmma",
       "no fence between P, which writes registers, and the next product",
       {skip(Op::kWgmmaFence, "", "run_steps")},
       ReportKind::kMissingWgmmaFence,
       {"wgmma_fence()"}},
  };
}

// Rows that see no key at the beginning, keys that are not used at the end, and four steps or more to each tile.
BackwardCase case_of(const BackwardId& id) {
  optest::Problem problem = dense_problem(id, 200 + 4 * id.tiles().block_m - 126, 220, 2);
  problem.seqused_k = {200};
  problem.causal = true;
  return backward_case(problem);
}

}  // namespace

const std::vector<PlantedBug>& planted_late_bugs() {
  constexpr ReportKind kRace = ReportKind::kRace;
  static const std::vector<PlantedBug> bugs = {
      {"meet_ds", "consumers do not wait for each other's dS", {skip(Op::kNamedSync, "ds_written")}, kRace, {"at ds["}},
      {"wait_dq_read",
       "dQ is staged again before its reduction has read it",
       {skip(Op::kBulkWaitRead, "", "acquire_dq_place")},
       kRace,
       {"at dq["}},
      {"fence_ds_and_dq",
       "a thread's parts of dS and dQ are handed over without a fence",
       {of_thread(skip(Op::kFenceProxy, "", "write_ds_and_issue_dv"), kConsumerThread)},
       ReportKind::kMissingProxyFence,
       {"consumer"}},
      {"wait_wgmma",
       "P is made before S is done",
       {skip(Op::kWgmmaWait, "", "run_steps_late")},
       ReportKind::kTouchedAccumulator,
       {"consumer"}},
  };
  return bugs;
}

const std::vector<PlantedBug>& planted_backward_bugs() {
  static const std::vector<PlantedBug> bugs = [] {
    std::vector<PlantedBug> all;
    for (const auto& some : {missing_waits(), missing_arrivals(), missing_fences(), others()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }();
  return bugs;
}

const BackwardCase& planted_backward_case() {
  static const BackwardCase given = case_of({kRowOf128, false, TANDEM_BF16});
  return given;
}
const BackwardCase& planted_late_case() {
  static const BackwardCase given = case_of({0, false, TANDEM_BF16});
  return given;
}

}  // namespace tandem::model
