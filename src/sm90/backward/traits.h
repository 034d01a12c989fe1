#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "sm90/backward/tiles.h"
#include "sm90/tile/smem_layout.cuh"

// One instance of the backward kernel: its tile, its roles, its shared memory and its barriers. No CUDA in here: the
// launcher, the host model and the tests read the same numbers. docs/SCHEDULE.md gives the budgets behind them.
//
// Barriers. w: consumer warpgroup, 0 or 1; q: stage of Q; o: stage of dO; d: buffer of dS; t: slot of a work tile.
// "warps": one arrival of each, by lane 0.
//
// clang-format off
// | name          | kind     | a phase needs    | who arrives                          | who waits                         |
// | ------------- | -------- | ---------------- | ------------------------------------ | --------------------------------- |
// | k_full        | mbarrier | 1 and K's bytes  | load thread, copy engine; if K is    | consumers, once a tile            |
// | v_full        | mbarrier | 1 and V's bytes  | cleaned, the clean-up warp alone     | consumers, once a tile            |
// | k_landed,     | mbarrier | 1 and the bytes  | load thread, copy engine, if cleaned | clean-up warp                     |
// | v_landed      |          |                  |                                      |                                   |
// | kv_empty      | mbarrier | 1                | store warp: dK, dV have left         | load thread, before the next K, V |
// | grads_full    | mbarrier | 8 warps          | consumers: dK, dV lie in K's, V's    | store warp                        |
// |               |          |                  | place                                |                                   |
// | q_full[q]     | mbarrier | 1 and the bytes  | load thread, copy engine; if Q is    | consumers, before S               |
// |               |          | of Q and LSE     | cleaned, the clean-up warp alone     |                                   |
// | q_landed[q]   | mbarrier | 1 and the bytes  | load thread, copy engine, if cleaned | clean-up warp                     |
// | q_empty[q]    | mbarrier | 8 warps          | consumers: dK is done                | load thread                       |
// | do_full[o]    | mbarrier | 1 and the bytes  | as q_full, of dO                     | consumers, before dP              |
// |               |          | of dO and delta  |                                      |                                   |
// | do_landed[o]  | mbarrier | 1 and the bytes  | as q_landed, of dO                   | clean-up warp                     |
// | do_empty[o]   | mbarrier | 8 warps          | consumers: dV is done                | load thread                       |
// | tile_full[t]  | mbarrier | 1 and the bytes  | load thread, copy engine: the slot   | everybody                         |
// |               |          | of a record      | is set                               |                                   |
// | tile_empty[t] | mbarrier | 10 warps, or 11  | consumers, clean-up and store warp,  | load thread                       |
// |               |          |                  | and the sender, if there is one      |                                   |
// |               |          |                  |                                      |                                   |
// | deterministic |          |                  |                                      |                                   |
// | dq_full[w]    | mbarrier | 4 warps          | consumer w: a square is staged       | sender                            |
// | dq_empty[w]   | mbarrier | 1                | sender: the square has been read     | consumer w, before the next       |
// |               |          |                  |                                      |                                   |
// | not split     |          |                  |                                      |                                   |
// | ds            | named    | 256 threads      | both consumers, once a step: both    | both consumers                    |
// |               |          |                  | halves of dS are written, and all    |                                   |
// |               |          |                  | products with the dS before are done |                                   |
// | epilogue      | named    | 256 threads      | both consumers: all have read K      | both consumers, once a tile       |
// |               |          |                  |                                      |                                   |
// | split         |          |                  |                                      |                                   |
// | p_full        | mbarrier | 4 warps          | consumer 0: P is written             | consumer 1                        |
// | p_empty       | mbarrier | 4 warps          | consumer 1: P is read                | consumer 0, before the next P     |
// | ds_full[d]    | mbarrier | 4 warps          | consumer 1: dS is written            | both consumers, before dQ         |
// | ds_empty[d]   | mbarrier | 4 warps          | consumer 0: its dQ is done           | consumer 1, before the next dS    |
// clang-format on
namespace tandem::sm90 {

// Number 0 is block_sync().
constexpr int kDsBarrier = 1;
constexpr int kGradsBarrier = 2;

// ElementType: Bf16 or Fp16; kRow: of kBackwardTiles; kIsGeneral: takes interval arrays and transformed scores too.
template <typename ElementType, int kRow, bool kIsGeneral>
struct BackwardTraits {
  static constexpr bool kGeneral = kIsGeneral;
  static constexpr BackwardTiles kTiles = kBackwardTiles[kRow];
  using Element = ElementType;
  static constexpr int kHeadDim = kTiles.headdim;
  static constexpr int kHeadDimV = kTiles.headdim_v;
  static constexpr int kBlockM = kTiles.block_m;
  static constexpr int kBlockN = kTiles.block_n;
  static constexpr int kConsumers = 2;
  static constexpr int kQStages = kTiles.q_stages;
  static constexpr int kDoStages = kTiles.do_stages;
  static constexpr bool kLateP = kTiles.late_p;
  static constexpr bool kSplit = kTiles.split;
  static constexpr int kTileStages = 2;
  static_assert(kBlockN == (kSplit ? 64 : 128));
  static_assert(kSplit || kQStages >= 3);    // a stage of Q is released one step late, by dK: two would wait for ever
  static_assert(!kLateP || kDoStages == 2);  // the buffers of dS take turns with them

  // The file's 64 K registers: what the launch gives each warpgroup, moved by setmaxnreg.
  static constexpr int kThreads = (1 + kConsumers) * 128;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  template <int kRows, int kColumns>
  using TileOf = SwizzledTile<kRows, kColumns * 2, panel_of(kColumns * 2)>;
  using KTile = TileOf<kBlockN, kHeadDim>;
  using VTile = TileOf<kBlockN, kHeadDimV>;
  using QTile = TileOf<kBlockM, kHeadDim>;
  using DoTile = TileOf<kBlockM, kHeadDimV>;
  using DsTile = TileOf<kBlockM, kBlockN>;                            // (queries, keys): panel w is consumer w's keys
  using DkTile = TileOf<64, kHeadDim>;                                // of 64 keys; leaves through the place of K
  using DvTile = TileOf<64, kHeadDimV>;                               // and of V
  static constexpr int kKeyGroups = kBlockN / 64;                     // of gradients, each of 64 keys
  static constexpr uint32_t kRowValueBytes = kBlockM * 4;             // LSE or delta of a step
  static constexpr uint32_t kPBytes = kSplit ? kBlockM * 64 * 2 : 0;  // from consumer to consumer

  // dQ of a step is summed up in squares of 64 x 64, which a consumer has one at a time: in each, 16 rows a warp.
  // Squares follow one another down the rows if a step has 128, else along the columns. At headdim 96 the second has 32
  // columns in common with the first, and its warps send the other half of what they have.
  static constexpr int kDqSquares = kBlockM / 64 * ((kHeadDim + 63) / 64);
  static constexpr bool kDqByRows = kBlockM == 128;
  static constexpr bool kDqSquaresOverlap = kHeadDim % 64 != 0;
  static_assert(!kDqSquaresOverlap || (kHeadDim == 96 && !kSplit));
  static constexpr uint32_t kDqWarpBytes = 16 * 64 * 4;
  static constexpr uint32_t kDqSquareBytes = 4 * kDqWarpBytes;
  static constexpr uint32_t kDqBytes = kBlockM * kHeadDim * 4;
  static constexpr int kDqSquaresOf0 = kSplit ? 2 : 1;  // consumer 0's come first
  static constexpr int kDqSquaresOf1 = kDqSquares - kDqSquaresOf0;
  static_assert(kDqSquaresOf1 == 1 || (kSplit && kDqSquaresOf1 == 2));

  // Addresses in the shared window, of the first of each kind.
  static constexpr uint32_t kBase = 1024;  // ptx::kDynamicSharedBase, where the kernel asserts it
  static constexpr uint32_t kSmemK = kBase;
  static constexpr uint32_t kSmemV = kSmemK + KTile::kBytes;
  static constexpr uint32_t kSmemQ = kSmemV + VTile::kBytes;
  static constexpr uint32_t kSmemDo = kSmemQ + kQStages * QTile::kBytes;
  static constexpr uint32_t kSmemDs = kSmemDo + kDoStages * DoTile::kBytes;  // two buffers
  static constexpr uint32_t kSmemDq = kSmemDs + 2 * DsTile::kBytes;          // each warp's part, on its way out
  static constexpr uint32_t kSmemP = kSmemDq + kConsumers * kDqSquareBytes;
  static constexpr uint32_t kLse = kSmemP + kPBytes;                       // of each stage of Q
  static constexpr uint32_t kDelta = kLse + kQStages * kRowValueBytes;     // of each stage of dO
  static constexpr uint32_t kSteps = kDelta + kDoStages * kRowValueBytes;  // of each stage of Q
  static constexpr uint32_t kStepBytes = 16;
  static constexpr uint32_t kTileSlots = kSteps + kQStages * kStepBytes;
  static constexpr uint32_t kTileSlotBytes = 96;
  static constexpr uint32_t kKFull = kTileSlots + kTileStages * kTileSlotBytes;
  static constexpr uint32_t kVFull = kKFull + 8;
  static constexpr uint32_t kKLanded = kVFull + 8;
  static constexpr uint32_t kVLanded = kKLanded + 8;
  static constexpr uint32_t kKvEmpty = kVLanded + 8;
  static constexpr uint32_t kGradsFull = kKvEmpty + 8;
  static constexpr uint32_t kQFull = kGradsFull + 8;
  static constexpr uint32_t kQLanded = kQFull + kQStages * 8;
  static constexpr uint32_t kQEmpty = kQLanded + kQStages * 8;
  static constexpr uint32_t kDoFull = kQEmpty + kQStages * 8;
  static constexpr uint32_t kDoLanded = kDoFull + kDoStages * 8;
  static constexpr uint32_t kDoEmpty = kDoLanded + kDoStages * 8;
  static constexpr uint32_t kTileFull = kDoEmpty + kDoStages * 8;
  static constexpr uint32_t kTileEmpty = kTileFull + kTileStages * 8;
  static constexpr uint32_t kDqFull = kTileEmpty + kTileStages * 8;
  static constexpr uint32_t kDqEmpty = kDqFull + kConsumers * 8;
  static constexpr uint32_t kPFull = kDqEmpty + kConsumers * 8;
  static constexpr uint32_t kPEmpty = kPFull + 8;
  static constexpr uint32_t kDsFull = kPEmpty + 8;
  static constexpr uint32_t kDsEmpty = kDsFull + 2 * 8;
  static constexpr uint32_t kSmemEnd = kDsEmpty + 2 * 8;
  static constexpr uint32_t kSmemBytes = kSmemEnd - kBase;  // dynamic, of the launch
  static_assert(kSmemBytes <= 227 * 1024);
};

}  // namespace tandem::sm90
