#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/packed_lengths.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"

// What the kernels that prepare a packed problem have in common: they read its offsets and lengths, clamped so that no
// sequence leaves its buffer and no two share a row, whatever the arrays hold [13], and order the sequences by their
// work, within runs of kPrepareThreads. One block of so many threads, each with a sequence of the run.
//
// Sequence 0 is what lies before the first offset, sequence batch + 1 what lies after the last: rows and keys without a
// used one.
namespace tandem::sm90 {

constexpr int kPrepareThreads = 512;
constexpr int kPrepareWarps = kPrepareThreads / ptx::kWarpThreads;

// Shared memory: one word for each warp, then two for each thread.
constexpr uint32_t kWarpTotals = ptx::kDynamicSharedBase;
constexpr uint32_t kWorkOfThread = kWarpTotals + kPrepareWarps * 4;
constexpr uint32_t kBlocksOfRank = kWorkOfThread + kPrepareThreads * 4;
constexpr uint32_t kPrepareSmemBytes = kBlocksOfRank + kPrepareThreads * 4 - ptx::kDynamicSharedBase;

struct Larger {
  TANDEM_DEVICE int operator()(int a, int b) const { return max_of(a, b); }
};
struct Sum {
  TANDEM_DEVICE int operator()(int a, int b) const { return a + b; }
};

struct Scan {
  int before;  // over the threads before this one
  int total;   // over the whole block
};

// Over the block's threads in order; values are >= 0. All threads call.
template <typename Combine>
TANDEM_DEVICE Scan scan_block(int value, const Combine& combine) {
  const int lane = ptx::lane_index();
  const int warp = ptx::thread_rank() / ptx::kWarpThreads;
  int inclusive = value;
  TANDEM_UNROLL
  for (int distance = 1; distance < ptx::kWarpThreads; distance *= 2) {
    const int source = max_of(lane - distance, 0);
    const int other = static_cast<int>(ptx::shuffle_index(static_cast<uint32_t>(inclusive), source));
    if (lane >= distance) inclusive = combine(inclusive, other);
  }
  int before = static_cast<int>(ptx::shuffle_index(static_cast<uint32_t>(inclusive), max_of(lane - 1, 0)));
  if (lane == 0) before = 0;
  ptx::block_sync();  // the totals of the last call have been read
  if (lane == ptx::kWarpThreads - 1) ptx::store_shared(kWarpTotals + static_cast<uint32_t>(warp) * 4, inclusive);
  ptx::block_sync();
  int total = 0;
  for (int w = 0; w < kPrepareWarps; ++w) {
    if (w == warp) before = combine(total, before);
    total = combine(total, ptx::load_shared<int>(kWarpTotals + static_cast<uint32_t>(w) * 4));
  }
  return {before, total};
}

TANDEM_DEVICE int element(const DeviceVector& vector, int index) {
  return ptx::load_global(vector.data + index * vector.stride);
}

// Where sequence `index` ends, as far as its own entry says.
TANDEM_DEVICE int claimed_end(const DeviceVector& cu_seqlens, int index, int batch, int rows) {
  if (index > batch) return rows;
  return min_of(max_of(element(cu_seqlens, index), 0), rows);
}

TANDEM_DEVICE int used_rows(const DeviceVector& seqused, int index, int rows) {
  return seqused.data == nullptr ? rows : min_of(max_of(element(seqused, index), 0), rows);
}

// One side of a sequence.
struct ScannedRows {
  int begin;  // first row
  int rows;   // of the buffer that it owns
  int len;    // used
};
struct ScannedSequence {
  ScannedRows q, k;
};

// Offsets seen so far: those after are no smaller.
struct Offsets {
  int q = 0;
  int k = 0;
};

TANDEM_DEVICE ScannedRows rows_between(int begin, int end) {
  return {begin, max_of(begin, end) - begin, 0};
}

// Sequence `index` of batch + 2, or nothing past them. All threads call.
TANDEM_DEVICE ScannedSequence scan_sequence(const PackedLengths& lengths, int index, Offsets& offsets) {
  const bool exists = index <= lengths.batch + 1;
  const int q_end = exists ? claimed_end(lengths.cu_seqlens_q, index, lengths.batch, lengths.total_q) : 0;
  const int k_end = exists ? claimed_end(lengths.cu_seqlens_k, index, lengths.batch, lengths.total_k) : 0;
  const Scan q = scan_block(q_end, Larger());
  const Scan k = scan_block(k_end, Larger());
  ScannedSequence sequence{};
  if (exists) {
    sequence.q = rows_between(max_of(offsets.q, q.before), q_end);
    sequence.k = rows_between(max_of(offsets.k, k.before), k_end);
  }
  if (1 <= index && index <= lengths.batch) {
    sequence.q.len = used_rows(lengths.seqused_q, index - 1, sequence.q.rows);
    sequence.k.len = used_rows(lengths.seqused_k, index - 1, sequence.k.rows);
  }
  offsets = {max_of(offsets.q, q.total), max_of(offsets.k, k.total)};
  return sequence;
}

// This thread's place among the block's first `count` when they are ordered by work, the most first; the other threads
// keep theirs.
TANDEM_DEVICE int rank_by_work(int work, int count) {
  const int self = ptx::thread_rank();
  ptx::store_shared(kWorkOfThread + static_cast<uint32_t>(self) * 4, work);
  ptx::block_sync();
  if (self >= count) return self;
  int rank = 0;
  for (int other = 0; other < count; ++other) {
    const int theirs = ptx::load_shared<int>(kWorkOfThread + static_cast<uint32_t>(other) * 4);
    if (theirs > work || (theirs == work && other < self)) ++rank;
  }
  return rank;
}

// Blocks of the sequences that come before this one; all threads call. `offset`: those of earlier runs.
TANDEM_DEVICE int blocks_before(int blocks, int rank, int& offset) {
  const int self = ptx::thread_rank();
  ptx::store_shared(kBlocksOfRank + static_cast<uint32_t>(rank) * 4, blocks);
  ptx::block_sync();
  const Scan scan = scan_block(ptx::load_shared<int>(kBlocksOfRank + static_cast<uint32_t>(self) * 4), Sum());
  ptx::store_shared(kWorkOfThread + static_cast<uint32_t>(self) * 4, scan.before);
  ptx::block_sync();
  const int before = offset + ptx::load_shared<int>(kWorkOfThread + static_cast<uint32_t>(rank) * 4);
  offset += scan.total;
  return before;
}

// Sequences of the workspace are written, and read, as two of these.
struct SequenceHalf {
  int word[4];
};

}  // namespace tandem::sm90
