#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/backward/key_blocks_params.h"
#include "sm90/backward/params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/warp.cuh"

// Deterministic: writes to each m_block's dq_turns the first n_block that adds to its dQ, the last that visits it.
//
// A turn goes from n_block to n_block without a gap, so every one between the first and the last must visit the
// m_block. With closed-form masks that is so: as n_blocks go up, their m_blocks do. Interval arrays may leave gaps.
// Then visits are added, of m_blocks that are all masked. One block of threads a sequence; where interval arrays differ
// between heads, one a sequence and key head.
namespace tandem::sm90 {

constexpr int kFirstTurnsThreads = 256;

// The records of a sequence, for the heads of one record; in the order in which tiles are drawn: the last n_block
// first.
struct RecordsOfSequence {
  KeyBlockRecord* first;
  int stride;
  int count;
  int m_block_begin;  // m_blocks of all sequences before this one
  int first_head, heads;

  TANDEM_DEVICE TileQueryRange* rows_of(int n_block) const {
    return &first[static_cast<int64_t>(count - 1 - n_block) * stride].rows;
  }
};

TANDEM_DEVICE RecordsOfSequence records_of_sequence(const KeyBlockParams& params, int index) {
  const BackwardParams& problem = params.problem;
  const int sequence = index / problem.record_heads;
  const int record_head = index - sequence * problem.record_heads;
  RecordsOfSequence records{};
  int first_record;
  if (problem.sequences == nullptr) {
    records.count = problem.dense_work.m_blocks;
    records.m_block_begin = sequence * params.dense_m_blocks;
    first_record = sequence * records.count;
  } else {
    const BackwardSequence* const found = problem.sequences + sequence;
    records.count = ceil_div(ptx::load_global(&found->k_rows), params.block_n);
    records.m_block_begin = ptx::load_global(&found->m_block_begin);
    first_record = ptx::load_global(&found->n_block_begin);
  }
  records.first = params.records + (int64_t{first_record} * problem.record_heads + record_head);
  records.stride = problem.record_heads;
  records.first_head = params.heads_differ ? record_head * problem.qheads_per_khead : 0;
  records.heads = params.heads_differ ? problem.qheads_per_khead : problem.nheads_q;
  return records;
}

// Of this lane and those below.
TANDEM_DEVICE int max_up_to_lane(int value) {
  const int lane = ptx::lane_index();
  TANDEM_UNROLL
  for (int lanes = 1; lanes < ptx::kWarpThreads; lanes *= 2) {
    const auto below = static_cast<int>(ptx::shuffle_index(static_cast<uint32_t>(value), max_of(lane - lanes, 0)));
    if (lane >= lanes) value = max_of(value, below);
  }
  return value;
}

TANDEM_DEVICE int of_last_lane(int value) {
  return static_cast<int>(ptx::shuffle_index(static_cast<uint32_t>(value), ptx::kWarpThreads - 1));
}

// m_begin becomes the least of this n_block's and those after it; INT32_MAX: none of them visits anything. What visits
// nothing gets an m_end of 0. A whole warp.
TANDEM_DEVICE void spread_begins(const RecordsOfSequence& records) {
  int least = INT32_MAX;
  for (int last = records.count - 1; last >= 0; last -= ptx::kWarpThreads) {
    const int n_block = last - ptx::lane_index();
    TileQueryRange rows{};
    if (n_block >= 0) rows = ptx::load_global(records.rows_of(n_block));
    const bool visits = rows.m_begin < rows.m_end;
    rows.m_begin = min_of(least, -max_up_to_lane(visits ? -rows.m_begin : -INT32_MAX));
    rows.m_end = visits ? rows.m_end : 0;
    if (n_block >= 0) ptx::store_global(records.rows_of(n_block), rows);
    least = of_last_lane(rows.m_begin);
  }
}

// m_end becomes the largest of this n_block's and those before it. A whole warp.
TANDEM_DEVICE void spread_ends(const RecordsOfSequence& records) {
  int largest = 0;
  for (int first = 0; first < records.count; first += ptx::kWarpThreads) {
    const int n_block = first + ptx::lane_index();
    TileQueryRange rows{};
    if (n_block < records.count) rows = ptx::load_global(records.rows_of(n_block));
    rows.m_end = max_of(largest, max_up_to_lane(rows.m_end));
    if (n_block < records.count) ptx::store_global(records.rows_of(n_block), rows);
    largest = of_last_lane(rows.m_end);
  }
}

// To the m_blocks of which an n_block is the last that visits them. A whole warp.
TANDEM_DEVICE void write_turns(const BackwardParams& problem, const RecordsOfSequence& records, int n_block) {
  const TileQueryRange rows = ptx::load_global(records.rows_of(n_block));
  int end = rows.m_end;
  if (n_block + 1 < records.count) end = min_of(end, ptx::load_global(records.rows_of(n_block + 1)).m_begin);
  for (int m_block = rows.m_begin; m_block < end; ++m_block) {
    const int64_t q_block = q_block_index(records.m_block_begin + m_block, records.first_head, problem.nheads_q);
    for (int head = ptx::lane_index(); head < records.heads; head += ptx::kWarpThreads) {
      ptx::store_global(problem.dq_turns + q_block + head, static_cast<uint32_t>(n_block));
    }
  }
}

TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kFirstTurnsThreads, 1)
    first_turns_kernel(const TANDEM_GRID_CONSTANT KeyBlockParams params) {
  ptx::launch_dependent_grid();
  ptx::wait_for_previous_grid();
  const RecordsOfSequence records = records_of_sequence(params, ptx::block_index());
  if (ptx::warp_index() == 0) {
    spread_begins(records);
    ptx::warp_sync();
    spread_ends(records);
  }
  ptx::block_sync();
  for (int n_block = ptx::warp_index(); n_block < records.count; n_block += kFirstTurnsThreads / ptx::kWarpThreads) {
    write_turns(params.problem, records, n_block);
  }
}

}  // namespace tandem::sm90
