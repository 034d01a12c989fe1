#pragma once

#include <cstdint>

#include "core/problem.h"
#include "sm90/backward/params.h"
#include "sm90/backward/q_blocks.h"
#include "sm90/backward/records.h"
#include "sm90/backward/tiles.h"

namespace tandem::sm90 {

constexpr uint64_t kBackwardAlignment = 256;  // of the workspace and of each part

// Where the parts of the workspace begin, in bytes. It begins with BackwardWorkspace; parts that the problem does not
// need are empty.
struct BackwardLayout {
  int64_t max_m_blocks = 0;  // of all sequences; exact if dense
  int64_t max_n_blocks = 0;
  int64_t max_q_blocks = 0;
  uint64_t sequences = 0;  // packed
  uint64_t lse_log2 = 0;
  uint64_t delta = 0;
  uint64_t bounds = 0;          // with interval arrays
  uint64_t dsink_partials = 0;  // with a sink
  uint64_t dq = 0;
  uint64_t dq_turns = 0;      // deterministic: of each q_block
  bool heads_differ = false;  // in their interval arrays
  int64_t record_heads = 1;   // records of each n_block
  uint64_t records = 0;
  uint64_t bytes = 0;  // of all
};

// Host arithmetic only, as all of this header. Of any problem whose q_blocks and n_blocks can be counted in an int.
BackwardLayout backward_layout(const AttentionProblem& problem, const BackwardTiles& tiles);

// The parts by pointer; nullptr: empty.
struct BackwardBuffers {
  BackwardWorkspace* workspace = nullptr;
  BackwardSequence* sequences = nullptr;
  float* lse_log2 = nullptr;
  float* delta = nullptr;
  MBlockBounds* bounds = nullptr;
  float* dsink_partials = nullptr;
  float* dq = nullptr;
  uint32_t* dq_turns = nullptr;  // of q_block 0
  KeyBlockRecord* records = nullptr;
};

BackwardBuffers backward_buffers(const AttentionProblem& problem, const BackwardLayout& layout);

QBlocks q_blocks_of(const AttentionProblem& problem, const BackwardTiles& tiles, const BackwardBuffers& buffers);

}  // namespace tandem::sm90
