#pragma once

// The tuning table of the forward kernel. docs/TUNING.md says which numbers are measured, and what others cost.
namespace tandem::sm90 {

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

// The tiles of an instance. What narrowed masks and transformed scores take of registers, more than two consumers do
// not have: with them ptxas spills.
constexpr ForwardTiles forward_tiles(int row, bool general) {
  const ForwardTiles& tiles = kForwardTiles[row];
  if (!general || tiles.consumers == 2) return tiles;
  return {tiles.headdim, tiles.headdim_v, 2, 128, 2, 3, 2, true, true, 1};
}

// Number of the row that covers these head dims, or -1.
constexpr int find_forward_tiles(int headdim, int headdim_v) {
  for (int i = 0; i < kForwardTilesCount; ++i) {
    if (headdim <= kForwardTiles[i].headdim && headdim_v <= kForwardTiles[i].headdim_v) return i;
  }
  return -1;
}

}  // namespace tandem::sm90
