#pragma once

#include "sm90/backward/clean.cuh"
#include "sm90/backward/consume.cuh"
#include "sm90/backward/consume_split.cuh"
#include "sm90/backward/dq_turns.cuh"
#include "sm90/backward/load.cuh"
#include "sm90/backward/params.h"
#include "sm90/backward/store.cuh"
#include "sm90/backward/traits.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/setmaxnreg.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"

// Attention, backward: with P = exp(scale Q K^T - LSE) and delta = rowsum(dO O) - dLSE,
//
//   dV = P^T dO      dP = dO V^T      dS = P (dP - delta)      dK = scale dS^T Q      dQ = scale dS K
//
// A persistent block works on tiles of 128 keys of one key head: K and V stay in shared memory, dK and dV in registers,
// and the query rows of all its query heads come by, 64 or 128 a step. dQ is summed up in fp32 in the workspace, by
// reductions of the copy engine; kernels before this one work out delta and clear those sums, one after it rounds them.
//
//   load thread   | Q0 dO0 K V | Q1 dO1 | Q2 dO2 ...                                       TMA, as stages fall free
//   consumers     | S0 dP0 | P0 | dV0 | dS0 | dQ0 S1 | dP1 dK0 | P1 | dV1 | dS1 | dQ1 S2 | dP2 dK1 | ...   64 keys each
//   copy engine                                      | += dQ0                    | += dQ1 ...
//   store warp                                                                              dK, dV at the end of a tile
//   sender        deterministic: tells the copy engine of each dQ, in its turn
//
// Everything but dQ is transposed, so that P^T comes out of the product as it goes into the next one. dS goes through
// shared memory: dQ sums over the keys of both consumers. The order of a consumer's products, and what runs under
// which, is at run_steps(); traits.h has the barrier table, docs/SCHEDULE.md the budgets.
//
// traits.h, tiles.h  what an instance is       load.cuh      load thread     consume.cuh     a consumer's tiles
// params.h           one launch's problem      clean.cuh     clean-up warp   step.cuh        its products, and between
// work.cuh           work tiles and steps      store.cuh     store warp      key_blocks.cuh  the kernel that plans
// tiles
//                                              dq_turns.cuh  sender
namespace tandem::sm90 {

template <typename Traits>
TANDEM_DEVICE void init_backward_barriers(bool deterministic) {
  constexpr int kConsumerWarps = Traits::kConsumers * 4;
  for (const uint32_t barrier :
       {Traits::kKFull, Traits::kVFull, Traits::kKLanded, Traits::kVLanded, Traits::kKvEmpty}) {
    ptx::mbarrier_init(barrier, 1);
  }
  ptx::mbarrier_init(Traits::kGradsFull, kConsumerWarps);
  for (int stage = 0; stage < Traits::kQStages; ++stage) {
    ptx::mbarrier_init(barrier_at(Traits::kQFull, stage), 1);
    ptx::mbarrier_init(barrier_at(Traits::kQLanded, stage), 1);
    ptx::mbarrier_init(barrier_at(Traits::kQEmpty, stage), kConsumerWarps);
  }
  for (int stage = 0; stage < Traits::kDoStages; ++stage) {
    ptx::mbarrier_init(barrier_at(Traits::kDoFull, stage), 1);
    ptx::mbarrier_init(barrier_at(Traits::kDoLanded, stage), 1);
    ptx::mbarrier_init(barrier_at(Traits::kDoEmpty, stage), kConsumerWarps);
  }
  for (int slot = 0; slot < Traits::kTileStages; ++slot) {
    ptx::mbarrier_init(barrier_at(Traits::kTileFull, slot), 1);
    ptx::mbarrier_init(barrier_at(Traits::kTileEmpty, slot), kConsumerWarps + (deterministic ? 3 : 2));
  }
  for (int w = 0; w < Traits::kConsumers; ++w) {
    ptx::mbarrier_init(barrier_at(Traits::kDqFull, w), 4);
    ptx::mbarrier_init(barrier_at(Traits::kDqEmpty, w), 1);
  }
  if constexpr (Traits::kSplit) {
    ptx::mbarrier_init(Traits::kPFull, 4);
    ptx::mbarrier_init(Traits::kPEmpty, 4);
    for (int ds = 0; ds < 2; ++ds) {
      ptx::mbarrier_init(barrier_at(Traits::kDsFull, ds), 4);
      ptx::mbarrier_init(barrier_at(Traits::kDsEmpty, ds), 4);
    }
  }
  ptx::fence_mbarrier_init();
}

template <typename Traits>
TANDEM_DEVICE void consume_steps(const BackwardParams& params, int w) {
  if constexpr (!Traits::kSplit) {
    BackwardConsumer<Traits>(params, w).run();
  } else if (w == 0) {
    SplitConsumerOfP<Traits>(params, w).run();
  } else {
    SplitConsumerOfDs<Traits>(params, w).run();
  }
}

template <typename Traits>
TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(Traits::kThreads, 1)
    backward_kernel(const TANDEM_GRID_CONSTANT BackwardParams params) {
  static_assert(Traits::kBase == ptx::kDynamicSharedBase);
  if (ptx::thread_rank() == 0) {
    ptx::check_dynamic_shared_base();
    for (const ptx::TensorMap* map : {&params.q, &params.k, &params.v, &params.dout, &params.dk, &params.dv}) {
      ptx::prefetch_tensor_map(map);
    }
    init_backward_barriers<Traits>(is_deterministic(params));
  }
  ptx::block_sync();
  ptx::launch_dependent_grid();
  const int warpgroup = ptx::warpgroup_index();
  if (warpgroup == 0) {
    ptx::setmaxnreg_decrease<Traits::kProducerRegisters>();
    const int warp = ptx::warp_index();
    if (warp == 0) {
      if (ptx::elect_one()) BackwardLoader<Traits>(params).run();
    } else if (warp == 1) {
      BackwardCleaner<Traits>(params).run();
    } else if (warp == 2) {
      store_gradients<Traits>(params);
    } else if (is_deterministic(params)) {
      if (ptx::elect_one()) DqSender<Traits>(params).run();
    }
  } else {
    ptx::setmaxnreg_increase<Traits::kConsumerRegisters>();
    consume_steps<Traits>(params, warpgroup - 1);
  }
}

}  // namespace tandem::sm90
