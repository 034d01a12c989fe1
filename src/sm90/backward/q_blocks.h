#pragma once

#include <cstdint>

#include "sm90/backward/params.h"
#include "sm90/backward/tiles.h"
#include "sm90/packed_lengths.h"

namespace tandem::sm90 {

// The q_blocks of a problem: every m_block of every query head, numbered by q_block_index(). Dense m_blocks count batch
// entry by batch entry, packed ones in the order of BackwardSequence.
struct QBlocks {
  const BackwardWorkspace* workspace = nullptr;  // packed: says how many m_blocks there are
  const BackwardSequence* sequences = nullptr;   // packed: num_sequences of them; nullptr: dense
  int num_sequences = 0;
  int nheads_q = 0;
  int batch = 0;     // dense, as what follows
  int m_blocks = 0;  // of each batch entry
  int seqlen_q = 0;
  int seqlen_k = 0;
  DeviceVector seqused_q, seqused_k;
};

constexpr int kQBlockThreads = 256;  // work on a q_block

// An instance of the kernels before and after the backward kernel: of the same row of kBackwardTiles.
template <typename ElementType, int kRow>
struct QBlockTraits {
  using Element = ElementType;
  static constexpr bool kGeneral = true;  // of row_keys(): the interval arrays are looked for
  static constexpr int kBlockM = kBackwardTiles[kRow].block_m;
  static constexpr int kHeadDim = kBackwardTiles[kRow].headdim;
  static constexpr int kHeadDimV = kBackwardTiles[kRow].headdim_v;
  static_assert(kBlockM % 64 == 0 && kHeadDim % 32 == 0 && kHeadDimV % 32 == 0);
};

// 8 elements of a row.
struct RowChunk {
  uint32_t word[4];
};

}  // namespace tandem::sm90
