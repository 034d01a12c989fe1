#pragma once

// The tuning table of the forward kernel. docs/TUNING.md says which numbers are measured, and what others cost.
namespace tandem::sm90 {

// Where O is summed up in e4m3, beside the tensor core's own sum of a few key blocks.
enum class SumOfO {
  kRegisters,
  kSharedFp32,  // shared memory
  kSharedBf16,  // there, in half the bytes; what that rounds off stays in the tensor core's sum
};

struct ForwardTiles {
  int headdim;    // of Q and K
  int headdim_v;  // of V and O
  int consumers;  // warpgroups of 64 query rows
  int block_n;    // keys of a block
  int q_stages;   // 2: the next tile's Q comes while this one is worked on, and its first S runs under the last P V
  int k_stages;
  int v_stages;
  bool ping_pong;  // consumers take turns on the tensor cores
  bool lazy;       // full blocks of keys are done without a row maximum (softmax.cuh)
  int pack_lag;    // groups of 16 keys whose exponentials run under the last P V; then P is rounded as it comes
  SumOfO sum = SumOfO::kRegisters;  // e4m3
};

// From the smallest: a problem runs in the first that covers both its head dims.
constexpr ForwardTiles kForwardTiles[] = {
    {64, 64, 4, 64, 2, 5, 4, false, true, 1},     //
    {96, 96, 3, 96, 2, 3, 2, true, true, 1},      //
    {128, 128, 2, 128, 2, 3, 2, true, true, 1},   //
    {192, 128, 2, 128, 1, 2, 2, true, false, 4},  //
    {192, 192, 2, 64, 2, 3, 2, true, true, 1},    //
    {256, 256, 2, 64, 1, 2, 2, false, false, 4},
};
constexpr int kForwardTilesCount = sizeof(kForwardTiles) / sizeof(kForwardTiles[0]);

// The same for e4m3, of plain instances that take V^T. A block of keys lies within one of the blocks of rows that share
// a scale.
constexpr ForwardTiles kFp8ForwardTiles[] = {
    {64, 64, 3, 128, 2, 3, 3, true, true, 1, SumOfO::kSharedFp32},
    {128, 128, 2, 128, 2, 3, 3, true, true, 1, SumOfO::kRegisters},
    {192, 192, 2, 128, 1, 3, 3, true, true, 1, SumOfO::kSharedBf16},
    {256, 256, 2, 64, 1, 4, 3, true, true, 1, SumOfO::kSharedBf16},
};
// Of the others: what they do besides takes registers and shared memory.
constexpr ForwardTiles kFp8NarrowTiles[] = {
    {64, 64, 2, 128, 2, 3, 3, true, true, 1, SumOfO::kRegisters},
    {128, 128, 2, 64, 2, 4, 4, true, true, 1, SumOfO::kRegisters},
    {192, 192, 2, 64, 1, 3, 3, true, true, 1, SumOfO::kSharedFp32},
    {256, 256, 2, 64, 1, 2, 2, true, true, 1, SumOfO::kSharedFp32},
};
constexpr int kFp8ForwardTilesCount = sizeof(kFp8ForwardTiles) / sizeof(kFp8ForwardTiles[0]);

constexpr int forward_tiles_count(bool fp8) {
  return fp8 ? kFp8ForwardTilesCount : kForwardTilesCount;
}

// Stages that V lands in where the kernel transposes it, and what it leaves of those of V^T. At headdim 256 shared
// memory has room for one of each.
constexpr int landing_stages(const ForwardTiles& tiles) {
  return tiles.headdim_v > 192 ? 1 : 2;
}
constexpr ForwardTiles transposing_tiles(ForwardTiles tiles) {
  if (landing_stages(tiles) == 1) tiles.v_stages = 1;
  return tiles;
}

// The tiles of an instance. What narrowed masks and transformed scores take of registers, more than two consumers do
// not have: with them ptxas spills. `transposes`: e4m3, V as it is stored.
constexpr ForwardTiles forward_tiles(bool fp8, int row, bool general, bool transposes) {
  if (fp8) {
    if (transposes) return transposing_tiles(kFp8NarrowTiles[row]);
    return general ? kFp8NarrowTiles[row] : kFp8ForwardTiles[row];
  }
  const ForwardTiles& tiles = kForwardTiles[row];
  if (!general || tiles.consumers == 2) return tiles;
  return {tiles.headdim, tiles.headdim_v, 2, 128, 2, 3, 2, true, true, 1};
}

// Number of the row that covers these head dims, or -1.
constexpr int find_forward_tiles(bool fp8, int headdim, int headdim_v) {
  for (int row = 0; row < forward_tiles_count(fp8); ++row) {
    const ForwardTiles tiles = forward_tiles(fp8, row, false, false);
    if (headdim <= tiles.headdim && headdim_v <= tiles.headdim_v) return row;
  }
  return -1;
}

}  // namespace tandem::sm90
