#pragma once

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/host_device.h"
#include "sm90/forward/tiles.h"
#include "sm90/tile/smem_layout.cuh"

// One instance of the forward kernel: its tile, its roles, its shared memory and its barriers. No CUDA in here: the
// launcher, the host model and the tests read the same numbers. docs/SCHEDULE.md gives the budgets behind them.
//
// Barriers. w: consumer warpgroup; q: Q's place, of a stage and a consumer; s: stage; t: slot of a work tile; N:
// consumers. "warps": one arrival of each, by lane 0.
//
// clang-format off
// | name         | kind     | a phase needs   | who arrives                            | who waits                        |
// | ------------ | -------- | --------------- | -------------------------------------- | -------------------------------- |
// | q_full[q]    | mbarrier | 1 and Q's bytes | scheduler warp, copy engine            | consumer w, once a tile          |
// | q_empty[q]   | mbarrier | 1               | store warp: O has left                 | scheduler warp, before the next Q|
// | o_full[q]    | mbarrier | 4 warps         | consumer w: O lies in Q's place        | store warp                       |
// | k_full[s]    | mbarrier | 1 and K's bytes | load thread, copy engine               | consumers                        |
// | k_empty[s]   | mbarrier | 4 N warps       | consumers: no score is needed again    | load thread                      |
// | v_full[s]    | mbarrier | 1 and V's bytes | load thread, copy engine; of a block   | consumers                        |
// |              |          | (or 1 alone)    | that is cleaned, the clean-up warp     |                                  |
// | v_landed[s]  | mbarrier | 1 and V's bytes | load thread, copy engine, if cleaned   | clean-up warp                    |
// | v_landed[l]  | mbarrier | 1 and V's bytes | load thread, copy engine; kTransposes  | transposing warp                 |
// | v_empty[s]   | mbarrier | 4 N warps       | consumers: P V is done                 | load thread, or transposing warp |
// | v_taken[l]   | mbarrier | 1               | transposing warp: V has been read      | load thread                      |
// | tile_full[t] | mbarrier | 1               | scheduler warp: the slot is set        | everybody else                   |
// | tile_empty[t]| mbarrier | 4 N + 3 warps   | everybody else, at the end of the tile | scheduler warp                   |
// | turn + w     | named    | 256 threads     | consumer w syncs, w - 1 arrives        | consumer w, before its wgmmas    |
// | epilogue + w | named    | 128 threads     | consumer w                             | consumer w: all have read Q      |
// clang-format on
namespace tandem::sm90 {

// Number 0 is block_sync(). turn + w, then epilogue + w.
constexpr int kTurnBarrier = 1;

// ElementType: Bf16, Fp16 or E4m3; kRow: of its tuning table; kIsGeneral: takes interval arrays and transformed scores
// too. In e4m3 the products read V^T in slots (core/fp8.h), which comes as it is or, if kIsTransposing, is made here of
// V as stored; and O leaves in a 16-bit type of the launch's choice. PERF: H200, causal, 512 keys, 2026-11-30: without
// the code for those 1.07 at headdim 64, 1.04 at 128, 1.01 at 256.
template <typename ElementType, int kRow, bool kIsGeneral, bool kIsTransposing = false>
struct ForwardTraits {
  static constexpr bool kGeneral = kIsGeneral;
  static constexpr bool kTransposes = kIsTransposing;
  using Element = ElementType;
  static constexpr bool kFp8 = std::is_same_v<Element, E4m3>;
  static constexpr int kElementBytes = sizeof(Element);
  static constexpr int kOutBytes = 2;  // of an element of O
  static constexpr ForwardTiles kTiles = forward_tiles(kFp8, kRow, kGeneral, kTransposes);
  static constexpr int kHeadDim = kTiles.headdim;
  static constexpr int kHeadDimV = kTiles.headdim_v;
  static constexpr int kConsumers = kTiles.consumers;
  static constexpr int kBlockM = kConsumers * kFragmentRows;
  static constexpr int kBlockN = kTiles.block_n;
  static constexpr int kQStages = kTiles.q_stages;
  static constexpr int kQPlaces = kQStages * kConsumers;  // in turn: those of a tile's consumers, then the next tile's
  static constexpr int kKStages = kTiles.k_stages;
  static constexpr int kVStages = kTiles.v_stages;
  static constexpr bool kPingPong = kTiles.ping_pong;
  static constexpr bool kLazy = kTiles.lazy;
  static constexpr int kPackLag = kTiles.pack_lag;
  static constexpr int kTileStages = 3;  // work tiles under way: one, and the next two
  static constexpr int kEpilogueBarrier = kTurnBarrier + kConsumers;

  // e4m3: where O lies beside the tensor core's sum. In shared memory each thread has its part for itself. Where Q has
  // one stage O leaves from there, and Q's place is free only when it has.
  static constexpr bool kOInShared = kTiles.sum != SumOfO::kRegisters;
  static constexpr bool kSumIsBf16 = kTiles.sum == SumOfO::kSharedBf16;
  static constexpr bool kOLeavesFromSum = kOInShared && kQStages == 1;

  // Of a consumer in e4m3: the tensor core's sum and O, S and P.
  static constexpr int kAccumulators = (kOInShared ? 1 : 2) * kHeadDimV / 2 + kBlockN / 2 + kBlockN / 4;

  // The file's 64 K registers, in steps of 8 a thread: what the launch gives each warpgroup, moved by setmaxnreg.
  static constexpr int kThreads = (1 + kConsumers) * 128;
  static constexpr bool kTight = kFp8 && kAccumulators > 200;
  static constexpr int kProducerRegisters = kTight ? 24 : kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kTight ? 240 : kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;
  static_assert(2 <= kConsumers && kConsumers <= 4);

  // e4m3: Q as wgmma's A operand in registers, where they suffice. From shared memory, S of 64 keys reads as much Q as
  // K, and S of 128 half as much.
  static constexpr bool kQInRegisters = kFp8 && kAccumulators + kHeadDim / 8 <= 200;

  // One consumer's Q. O leaves through the same place, which is as large as the larger of them.
  using QTile = SwizzledTile<kFragmentRows, kHeadDim * kElementBytes, panel_of(kHeadDim* kElementBytes)>;
  using OTile = SwizzledTile<kFragmentRows, kHeadDimV * kOutBytes, panel_of(kHeadDimV* kOutBytes)>;
  static constexpr uint32_t kQPlaceBytes =
      OTile::kBytes > QTile::kBytes && !kOLeavesFromSum ? OTile::kBytes : QTile::kBytes;
  static constexpr uint32_t kSumBytes =
      kOInShared ? kFragmentRows * kHeadDimV * (kSumIsBf16 ? 2 : 4) : 0;  // one consumer's O
  using KTile = SwizzledTile<kBlockN, kHeadDim * kElementBytes, panel_of(kHeadDim* kElementBytes)>;
  // (kBlockN, kHeadDimV) as V is stored; e4m3: V^T, (kHeadDimV, kBlockN).
  static constexpr int kVRowBytes = kFp8 ? kBlockN : kHeadDimV * kElementBytes;
  using VTile = SwizzledTile<kFp8 ? kHeadDimV : kBlockN, kVRowBytes, panel_of(kVRowBytes)>;
  static_assert(!kFp8 || (VTile::kPanels == 1 && kConsumers <= 3));

  // e4m3: columns of ones beside V make the product sum P as it was rounded, too: rows at the end of each stage of V^T,
  // or where a product has no room for more columns, a tile of their own.
  static constexpr int kOnes = 8;
  static constexpr bool kOnesApart = kHeadDimV + kOnes > 256;
  static constexpr int kProductColumns = kHeadDimV + (kFp8 && !kOnesApart ? kOnes : 0);
  static constexpr uint32_t kVStageBytes = VTile::kBytes + (kProductColumns - kHeadDimV) * kBlockN;

  // Where the copy engine puts V: the stages that the products read, or others, to be transposed from.
  static constexpr int kLandingStages = kTransposes ? landing_stages(kTiles) : kVStages;
  static constexpr int kStoredVRowBytes = kTransposes ? kHeadDimV : kVRowBytes;
  using StoredVTile = SwizzledTile<kBlockN, kStoredVRowBytes, panel_of(kStoredVRowBytes)>;

  // Addresses in the shared window, of the first of each kind.
  static constexpr uint32_t kBase = 1024;  // ptx::kDynamicSharedBase, where the kernel asserts it
  static constexpr uint32_t kSmemQ = kBase;
  static constexpr uint32_t kSmemK = kSmemQ + kQPlaces * kQPlaceBytes;
  static constexpr uint32_t kSmemSum = kSmemK + kKStages * KTile::kBytes;
  static constexpr uint32_t kSmemV = kSmemSum + kConsumers * kSumBytes;
  static constexpr uint32_t kSmemStoredV = kSmemV + kVStages * kVStageBytes;
  static constexpr uint32_t kSmemOnes = kSmemStoredV + (kTransposes ? kLandingStages * StoredVTile::kBytes : 0);
  static constexpr uint32_t kTileSlots = kSmemOnes + (kFp8 && kOnesApart ? kOnes * kBlockN : 0);
  static constexpr uint32_t kTileSlotBytes = 128;
  static constexpr uint32_t kQFull = kTileSlots + kTileStages * kTileSlotBytes;
  static constexpr uint32_t kQEmpty = kQFull + kQPlaces * 8;
  static constexpr uint32_t kOFull = kQEmpty + kQPlaces * 8;
  static constexpr uint32_t kKFull = kOFull + kQPlaces * 8;
  static constexpr uint32_t kKEmpty = kKFull + kKStages * 8;
  static constexpr uint32_t kVFull = kKEmpty + kKStages * 8;
  static constexpr uint32_t kVLanded = kVFull + kVStages * 8;
  static constexpr uint32_t kVTaken = kVLanded + kLandingStages * 8;
  static constexpr uint32_t kVEmpty = kVTaken + (kTransposes ? kLandingStages * 8 : 0);
  static constexpr uint32_t kTileFull = kVEmpty + kVStages * 8;
  static constexpr uint32_t kTileEmpty = kTileFull + kTileStages * 8;
  static constexpr uint32_t kScalesK = kTileEmpty + kTileStages * 8;  // e4m3: of each stage's block of keys, fp32
  static constexpr uint32_t kScalesV = kScalesK + (kFp8 ? kKStages * 4 : 0);  // of the same stages and blocks
  static constexpr uint32_t kSmemEnd = kScalesV + (kFp8 ? kKStages * 4 : 0);
  static constexpr uint32_t kSmemBytes = kSmemEnd - kBase;  // dynamic, of the launch
  // Where consumer w's O is handed over, of the tile whose Q lies in place q.
  TANDEM_HD static constexpr uint32_t o_address(int q, int w) {
    return kOLeavesFromSum ? kSmemSum + static_cast<uint32_t>(w) * kSumBytes
                           : kSmemQ + static_cast<uint32_t>(q) * kQPlaceBytes;
  }
  static_assert(kSmemBytes <= 227 * 1024);
  // What is swizzled begins where its pattern does.
  static_assert(kVStageBytes % VTile::kPatternBytes == 0 && kSmemOnes % VTile::kPatternBytes == 0);
  static_assert(kSmemSum % OTile::kPatternBytes == 0 && kQPlaceBytes % OTile::kPatternBytes == 0);
  static_assert(!kTransposes || kSmemStoredV % StoredVTile::kPatternBytes == 0);
};

}  // namespace tandem::sm90
