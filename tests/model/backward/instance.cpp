#include "backward/instance.h"

#include "sm90/backward/kernel.cuh"
#include "sm90/backward/traits.h"

namespace tandem::model {
namespace {

template <typename Traits>
void name_everything(Names& names) {
  constexpr bool kInTurn = true;
  names.mbarrier("k_full", Traits::kKFull, 1, kInTurn);
  names.mbarrier("v_full", Traits::kVFull, 1, kInTurn);
  names.mbarrier("k_landed", Traits::kKLanded, 1, kInTurn);
  names.mbarrier("v_landed", Traits::kVLanded, 1, kInTurn);
  names.mbarrier("kv_empty", Traits::kKvEmpty, 1, kInTurn);
  names.mbarrier("grads_full", Traits::kGradsFull, 1, kInTurn);
  names.mbarrier("q_full", Traits::kQFull, Traits::kQStages, kInTurn);
  names.mbarrier("q_landed", Traits::kQLanded, Traits::kQStages, kInTurn);
  names.mbarrier("q_empty", Traits::kQEmpty, Traits::kQStages, kInTurn);
  names.mbarrier("do_full", Traits::kDoFull, Traits::kDoStages, kInTurn);
  names.mbarrier("do_landed", Traits::kDoLanded, Traits::kDoStages, kInTurn);
  names.mbarrier("do_empty", Traits::kDoEmpty, Traits::kDoStages, kInTurn);
  names.mbarrier("tile_full", Traits::kTileFull, Traits::kTileStages, kInTurn);
  names.mbarrier("tile_empty", Traits::kTileEmpty, Traits::kTileStages, kInTurn);
  names.mbarrier("dq_full", Traits::kDqFull, Traits::kConsumers, kInTurn);
  names.mbarrier("dq_empty", Traits::kDqEmpty, Traits::kConsumers, kInTurn);
  if (Traits::kSplit) {
    names.mbarrier("p_full", Traits::kPFull, 1, kInTurn);
    names.mbarrier("p_empty", Traits::kPEmpty, 1, kInTurn);
    names.mbarrier("ds_full", Traits::kDsFull, 2, kInTurn);
    names.mbarrier("ds_empty", Traits::kDsEmpty, 2, kInTurn);
    names.shared("p", Traits::kSmemP, Traits::kPBytes, 1);
  }
  names.shared("k", Traits::kSmemK, Traits::KTile::kBytes, 1);
  names.shared("v", Traits::kSmemV, Traits::VTile::kBytes, 1);
  names.shared("q", Traits::kSmemQ, Traits::QTile::kBytes, Traits::kQStages);
  names.shared("do", Traits::kSmemDo, Traits::DoTile::kBytes, Traits::kDoStages);
  names.shared("ds", Traits::kSmemDs, Traits::DsTile::kBytes, 2);
  names.shared("dq", Traits::kSmemDq, Traits::kDqWarpBytes, Traits::kConsumers * 4);
  names.shared("lse", Traits::kLse, Traits::kRowValueBytes, Traits::kQStages);
  names.shared("delta", Traits::kDelta, Traits::kRowValueBytes, Traits::kDoStages);
  names.shared("step", Traits::kSteps, Traits::kStepBytes, Traits::kQStages);
  names.shared("tile_slot", Traits::kTileSlots, Traits::kTileSlotBytes, Traits::kTileStages);
  names.named_barrier("ds_written", sm90::kDsBarrier, 1);
  names.named_barrier("epilogue", sm90::kGradsBarrier, 1);
  names.warp_role("load", 0, 1);
  names.warp_role("clean-up", 1, 1);
  names.warp_role("store", 2, 1);
  names.warp_role("sender", 3, 1);
  for (int w = 0; w < Traits::kConsumers; ++w) names.warp_role("consumer " + std::to_string(w), 4 + 4 * w, 4);
}

// Rows and kinds that sm90/backward/tiles.h does not have give an empty instance, so that the list of what is compiled
// may run ahead of it.
template <typename Element, int kRow, bool kGeneral>
BackwardInstance instance_of() {
  if constexpr (kRow < sm90::kBackwardTilesCount) {
    if constexpr (!kGeneral || sm90::has_general_instance(kRow)) {
      using Traits = sm90::BackwardTraits<Element, kRow, kGeneral>;
      return {Traits::kThreads, Traits::kSmemBytes,
              [](const sm90::BackwardParams& params) { sm90::backward_kernel<Traits>(params); },
              name_everything<Traits>};
    }
  }
  return {};
}

}  // namespace

template <>
BackwardInstance backward_instance<TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>(DType dtype) {
  return dtype == DType::kBf16 ? instance_of<Bf16, TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>()
                               : instance_of<Fp16, TANDEM_MODEL_ROW, TANDEM_MODEL_GENERAL>();
}

}  // namespace tandem::model
