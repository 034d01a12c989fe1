#include "forward/instance.h"

#include "sm90/forward/kernel.cuh"
#include "sm90/forward/traits.h"

namespace tandem::model {
namespace {

template <typename Traits>
void name_everything(Names& names) {
  constexpr bool kInTurn = true;
  names.mbarrier("q_full", Traits::kQFull, Traits::kQPlaces, kInTurn);
  names.mbarrier("q_empty", Traits::kQEmpty, Traits::kQPlaces, kInTurn);
  names.mbarrier("o_full", Traits::kOFull, Traits::kQPlaces, kInTurn);
  names.mbarrier("k_full", Traits::kKFull, Traits::kKStages, kInTurn);
  names.mbarrier("k_empty", Traits::kKEmpty, Traits::kKStages, kInTurn);
  names.mbarrier("v_full", Traits::kVFull, Traits::kVStages, kInTurn);
  names.mbarrier("v_landed", Traits::kVLanded, Traits::kLandingStages, kInTurn);
  names.mbarrier("v_empty", Traits::kVEmpty, Traits::kVStages, kInTurn);
  names.mbarrier("tile_full", Traits::kTileFull, Traits::kTileStages, kInTurn);
  names.mbarrier("tile_empty", Traits::kTileEmpty, Traits::kTileStages, kInTurn);
  names.shared("q", Traits::kSmemQ, Traits::kQPlaceBytes, Traits::kQPlaces);
  names.shared("k", Traits::kSmemK, Traits::KTile::kBytes, Traits::kKStages);
  names.shared("v", Traits::kSmemV, Traits::kVStageBytes, Traits::kVStages);
  names.shared("tile_slot", Traits::kTileSlots, Traits::kTileSlotBytes, Traits::kTileStages);
  if (Traits::kFp8) {
    names.shared("k_scale", Traits::kScalesK, 4, Traits::kKStages);
    names.shared("v_scale", Traits::kScalesV, 4, Traits::kKStages);
  }
  if constexpr (Traits::kTransposes) {
    names.mbarrier("v_taken", Traits::kVTaken, Traits::kLandingStages, kInTurn);
    names.shared("stored_v", Traits::kSmemStoredV, Traits::StoredVTile::kBytes, Traits::kLandingStages);
  }
  names.named_barrier("turn", sm90::kTurnBarrier, Traits::kConsumers);
  names.named_barrier("epilogue", Traits::kEpilogueBarrier, Traits::kConsumers);
  names.warp_role("load", 0, 1);
  names.warp_role("scheduler", 1, 1);
  names.warp_role(Traits::kTransposes ? "transpose" : "clean-up", 2, 1);
  names.warp_role("store", 3, 1);
  for (int w = 0; w < Traits::kConsumers; ++w) names.warp_role("consumer " + std::to_string(w), 4 + 4 * w, 4);
}

template <typename Traits>
ForwardInstance instance_of() {
  return {Traits::kThreads, Traits::kSmemBytes,
          [](const sm90::ForwardParams& params) { sm90::forward_kernel<Traits>(params); }, name_everything<Traits>};
}

}  // namespace

#ifdef TANDEM_MODEL_FP8
template <>
ForwardInstance fp8_forward_instance<TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>(bool transposes) {
  return transposes ? instance_of<sm90::ForwardTraits<E4m3, TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL, true>>()
                    : instance_of<sm90::ForwardTraits<E4m3, TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>>();
}
#else
template <>
ForwardInstance forward_instance<TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>(DType dtype) {
  return dtype == DType::kBf16 ? instance_of<sm90::ForwardTraits<Bf16, TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>>()
                               : instance_of<sm90::ForwardTraits<Fp16, TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>>();
}
#endif

}  // namespace tandem::model
