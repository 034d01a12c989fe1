#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/forward/prepare_params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"

// Reads the offsets and lengths of a packed problem and writes its sequences to the workspace, clamped so that no
// sequence leaves its buffer and no two share a row, whatever the arrays hold [13], and in the order in which they are
// worked on: the longest first, within runs of kPrepareThreads. One block.
//
// Sequence 0 is what lies before the first offset, sequence batch + 1 what lies after the last: rows without a used
// one.
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

// Offsets seen so far: those after are no smaller.
struct Offsets {
  int q = 0;
  int k = 0;
};

// Sequence `index` of batch + 2, or nothing past them. All threads call.
TANDEM_DEVICE PackedSequence find_sequence(const PrepareParams& params, int index, Offsets& offsets) {
  const bool exists = index <= params.batch + 1;
  const int q_end = exists ? claimed_end(params.cu_seqlens_q, index, params.batch, params.total_q) : 0;
  const int k_end = exists ? claimed_end(params.cu_seqlens_k, index, params.batch, params.total_k) : 0;
  const Scan q = scan_block(q_end, Larger());
  const Scan k = scan_block(k_end, Larger());
  PackedSequence sequence{};
  if (exists) {
    sequence.q_begin = max_of(offsets.q, q.before);
    sequence.q_rows = max_of(sequence.q_begin, q_end) - sequence.q_begin;
    sequence.m_blocks = ceil_div(sequence.q_rows, params.block_m);
  }
  if (1 <= index && index <= params.batch) {
    sequence.k_begin = max_of(offsets.k, k.before);
    sequence.q_len = used_rows(params.seqused_q, index - 1, sequence.q_rows);
    sequence.k_len = used_rows(params.seqused_k, index - 1, max_of(sequence.k_begin, k_end) - sequence.k_begin);
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

// m_blocks of the sequences that come before this one; all threads call. `offset`: those of earlier runs.
TANDEM_DEVICE int blocks_before(int m_blocks, int rank, int& offset) {
  const int self = ptx::thread_rank();
  ptx::store_shared(kBlocksOfRank + static_cast<uint32_t>(rank) * 4, m_blocks);
  ptx::block_sync();
  const Scan scan = scan_block(ptx::load_shared<int>(kBlocksOfRank + static_cast<uint32_t>(self) * 4), Sum());
  ptx::store_shared(kWorkOfThread + static_cast<uint32_t>(self) * 4, scan.before);
  ptx::block_sync();
  const int before = offset + ptx::load_shared<int>(kWorkOfThread + static_cast<uint32_t>(rank) * 4);
  offset += scan.total;
  return before;
}

// A dense problem needs the counter only. One thread.
TANDEM_KERNEL reset_kernel(ForwardWorkspace* workspace) {
  ptx::launch_dependent_grid();
  ptx::store_global(&workspace->next_tile, uint32_t{0});
}

TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kPrepareThreads, 1) prepare_kernel(const TANDEM_GRID_CONSTANT PrepareParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  const int num_sequences = params.batch + 2;
  Offsets offsets;
  int m_blocks = 0;
  for (int first = 0; first < num_sequences; first += kPrepareThreads) {
    const int index = first + ptx::thread_rank();
    PackedSequence sequence = find_sequence(params, index, offsets);
    const int rank =
        rank_by_work(sequence.q_len > 0 ? sequence.k_len : 0, min_of(num_sequences - first, kPrepareThreads));
    sequence.block_begin = blocks_before(sequence.m_blocks, rank, m_blocks);
    struct Half {
      int word[4];
    };
    if (index < num_sequences) {
      Half* const place = reinterpret_cast<Half*>(params.sequences + first + rank);
      ptx::store_global(place, Half{sequence.q_begin, sequence.q_rows, sequence.q_len, sequence.k_begin});
      ptx::store_global(place + 1, Half{sequence.k_len, sequence.m_blocks, sequence.block_begin, 0});
    }
  }
  if (ptx::thread_rank() == 0) {
    ptx::store_global(&params.workspace->next_tile, uint32_t{0});
    ptx::store_global(&params.workspace->m_blocks, m_blocks);
  }
}

}  // namespace tandem::sm90
