#pragma once

// The tuning table of the backward kernel. docs/TUNING.md says which numbers are measured, and what others cost.
namespace tandem::sm90 {

struct BackwardTiles {
  int headdim;    // of Q and K
  int headdim_v;  // of V and O
  int block_m;    // query rows of a step
  int block_n;    // keys of a work tile
  int q_stages;
  int do_stages;
  bool late_p;   // P is packed, and dV issued, after dS: for want of registers
  bool split;    // the two consumers share 64 keys: one makes P and dV, the other dS and dK; else they have 64 each
  bool general;  // has an instance for interval arrays and transformed scores too
};

// From the smallest: a problem runs in the first that covers both its head dims.
constexpr BackwardTiles kBackwardTiles[] = {
    {64, 64, 128, 128, 3, 2, true, false, false},   // late_p: a general instance needs P before dS
    {96, 96, 64, 128, 3, 3, false, false, false},   //
    {128, 128, 64, 128, 3, 3, false, false, true},  //
    {192, 128, 64, 64, 2, 2, false, true, false},   //
    {192, 192, 64, 64, 2, 2, false, true, false},   //
    {256, 256, 64, 64, 2, 1, false, true, true},    //
};
constexpr int kBackwardTilesCount = sizeof(kBackwardTiles) / sizeof(kBackwardTiles[0]);

constexpr bool has_general_instance(int row) {
  return kBackwardTiles[row].general;
}

// Number of the row that covers these head dims, or -1.
constexpr int find_backward_tiles(int headdim, int headdim_v, bool general) {
  for (int i = 0; i < kBackwardTilesCount; ++i) {
    if (general && !has_general_instance(i)) continue;
    if (headdim <= kBackwardTiles[i].headdim && headdim_v <= kBackwardTiles[i].headdim_v) return i;
  }
  return -1;
}

}  // namespace tandem::sm90
