#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "sm90/tile/smem_layout.cuh"

// One instance of the forward kernel: its tile, its roles, its shared memory and its barriers. No CUDA in here: the
// launcher, the host model and the tests read the same numbers. docs/SCHEDULE.md gives the budgets behind them.
//
// Barriers. w: consumer warpgroup 0 or 1; s: stage. "warps": one arrival of each, by lane 0.
//
// clang-format off
// | name         | kind     | a phase needs   | who arrives                         | who waits                         |
// | ------------ | -------- | --------------- | ----------------------------------- | --------------------------------- |
// | q_full[w]    | mbarrier | 1 and Q's bytes | load thread, copy engine            | consumer w, once a tile           |
// | q_empty[w]   | mbarrier | 1               | store thread w: O has left          | load thread, before the next Q    |
// | k_full[s]    | mbarrier | 1 and K's bytes | load thread, copy engine            | both consumers                    |
// | k_empty[s]   | mbarrier | 8 warps         | both consumers: S is done           | load thread                       |
// | v_full[s]    | mbarrier | 1 and V's bytes | load thread, copy engine            | both consumers                    |
// | v_empty[s]   | mbarrier | 8 warps         | both consumers: P V is done         | load thread                       |
// | o_full[w]    | mbarrier | 4 warps         | consumer w: O lies in Q's place     | store thread w                    |
// | tile_full    | mbarrier | 1               | scheduler thread: the slot is set   | consumers, load and store threads |
// | tile_empty   | mbarrier | 8 warps and 3   | consumers, load and store threads   | scheduler thread                  |
// | turn + w     | named    | 256 threads     | consumer w syncs, the other arrives | consumer w, before its wgmmas     |
// | epilogue + w | named    | 128 threads     | consumer w                          | consumer w: all have read Q       |
// clang-format on
namespace tandem::sm90 {

// Number 0 is block_sync().
enum NamedBarrier : int { kTurnBarrier = 1, kEpilogueBarrier = 3 };

template <typename ElementType, int kHeadDimValue>
struct ForwardTraits {
  using Element = ElementType;
  static constexpr int kHeadDim = kHeadDimValue;  // of QK and of V
  static constexpr int kConsumers = 2;            // warpgroups, of 64 rows each
  static constexpr int kBlockM = kConsumers * 64;
  static constexpr int kBlockN = 128;
  static constexpr int kStages = 2;      // of K and of V
  static constexpr int kTileStages = 1;  // work tiles on their way

  static constexpr int kThreads = (1 + kConsumers) * 128;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  using QTile = SwizzledTile<64, kHeadDim * 2>;  // one consumer's; O leaves through the same space
  using KTile = SwizzledTile<kBlockN, kHeadDim * 2>;
  using VTile = KTile;

  // Addresses in the shared window, of the first of each kind.
  static constexpr uint32_t kBase = 1024;  // ptx::kDynamicSharedBase, where the kernel asserts it
  static constexpr uint32_t kSmemQ = kBase;
  static constexpr uint32_t kSmemK = kSmemQ + kConsumers * QTile::kBytes;
  static constexpr uint32_t kSmemV = kSmemK + kStages * KTile::kBytes;
  static constexpr uint32_t kTileSlots = kSmemV + kStages * VTile::kBytes;
  static constexpr uint32_t kTileSlotBytes = 32;
  static constexpr uint32_t kQFull = kTileSlots + kTileStages * kTileSlotBytes;
  static constexpr uint32_t kQEmpty = kQFull + kConsumers * 8;
  static constexpr uint32_t kOFull = kQEmpty + kConsumers * 8;
  static constexpr uint32_t kKFull = kOFull + kConsumers * 8;
  static constexpr uint32_t kKEmpty = kKFull + kStages * 8;
  static constexpr uint32_t kVFull = kKEmpty + kStages * 8;
  static constexpr uint32_t kVEmpty = kVFull + kStages * 8;
  static constexpr uint32_t kTileFull = kVEmpty + kStages * 8;
  static constexpr uint32_t kTileEmpty = kTileFull + kTileStages * 8;
  static constexpr uint32_t kSmemEnd = kTileEmpty + kTileStages * 8;
  static constexpr uint32_t kSmemBytes = kSmemEnd - kBase;  // dynamic, of the launch
  static_assert(kSmemBytes <= 227 * 1024);
};

// The one instance that is compiled; headdim 64 is <Bf16, 64>.
using ForwardInstance = ForwardTraits<Bf16, 128>;

}  // namespace tandem::sm90
