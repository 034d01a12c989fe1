#pragma once

#include <cstdint>

#include "core/block_range.h"
#include "core/int_math.h"
#include "core/mask.h"
#include "core/work_tiles.h"
#include "sm90/backward/key_blocks_params.h"
#include "sm90/backward/params.h"
#include "sm90/backward/q_blocks.cuh"
#include "sm90/backward/row_keys.cuh"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/tile/clear_rows.cuh"
#include "sm90/tile/warp_reduce.cuh"

// Works out, for each n_block, which m_blocks visit it, which of these need no mask, and what must be cleared: a record
// for the backward kernel, whose load thread has neither the registers nor the time for it. One warp a record.
namespace tandem::sm90 {

// A sequence, and one of its n_blocks.
struct KeyBlockOrigin {
  BackwardSequence sequence;  // dense: made up of the batch entry
  int n_block, batch;
  int first_head, last_head;  // query heads whose interval arrays matter: one stands for all that share them
};

// Which of a sequence's n_blocks is drawn as number `place`. Deterministic, the last comes first (dq_turns.cuh): where
// early rows see no late keys, it then begins where the one after it has been by the time.
TANDEM_DEVICE int n_block_at(const BackwardParams& params, int place, int n_blocks) {
  return params.dq_turns == nullptr ? place : n_blocks - 1 - place;
}

TANDEM_DEVICE KeyBlockOrigin dense_key_block(const BackwardParams& params, int m_blocks, int index) {
  const int batch = index / params.dense_work.m_blocks;
  KeyBlockOrigin origin{};
  origin.batch = batch;
  origin.n_block = n_block_at(params, index - batch * params.dense_work.m_blocks, params.dense_work.m_blocks);
  origin.sequence.q_rows = params.seqlen_q;
  origin.sequence.q_len = used_of_entry({params.seqused_q, params.seqused_q_stride}, batch, params.seqlen_q);
  origin.sequence.k_rows = params.seqlen_k;
  origin.sequence.k_len = used_of_entry({params.seqused_k, params.seqused_k_stride}, batch, params.seqlen_k);
  origin.sequence.m_block_begin = batch * m_blocks;
  return origin;
}

TANDEM_DEVICE KeyBlockOrigin packed_key_block(const BackwardParams& params, int block_n, int index) {
  int low = 0;
  int high = params.num_sequences;  // n_block_begin of low <= index < that of high
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (ptx::load_global(&params.sequences[middle].n_block_begin) <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  struct Half {
    int word[4];
  };
  const Half* const found = reinterpret_cast<const Half*>(params.sequences + low);
  const Half a = ptx::load_global(found);
  const Half b = ptx::load_global(found + 1);
  KeyBlockOrigin origin{};
  origin.sequence = {a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1], b.word[2], b.word[3]};
  origin.n_block = n_block_at(params, index - origin.sequence.n_block_begin, ceil_div(origin.sequence.k_rows, block_n));
  return origin;
}

// By closed forms.
TANDEM_DEVICE KeyBlockRecord closed_record(const KeyBlockParams& params, const KeyBlockOrigin& origin) {
  const BackwardSequence& sequence = origin.sequence;
  const BasicMaskSpec<int>& mask = params.problem.mask;
  const int first_key = origin.n_block * params.block_n;
  const bool dense = params.problem.sequences == nullptr;
  const BasicBlockRange<int> range =
      m_block_range(mask, first_key, first_key + params.block_n, sequence.q_len, sequence.k_len, params.block_m);
  const BasicRowRange<int> seeing = row_range(mask, 0, sequence.k_len, sequence.q_len, sequence.k_len);
  const BasicTileBounds<int> seen = tile_bounds(mask, 0, sequence.q_len, sequence.q_len, sequence.k_len);
  KeyBlockRecord record{};
  record.keys = {first_key, sequence.k_begin, sequence.k_len, sequence.k_rows};
  record.rows = {sequence.q_begin, sequence.q_len, range.begin, range.end};
  if (params.problem.nheads_q == 0) record.rows.m_begin = record.rows.m_end;
  // Rows and keys past the end of a dense problem's buffer come as zeros.
  const bool rows_end = dense && seeing.end == params.problem.seqlen_q;
  record.mask = {range.full_begin, range.full_end, seeing.begin, rows_end ? INT32_MAX : seeing.end};
  record.sequence = {origin.batch, sequence.m_block_begin, {0, 0}};
  const int keys_end = dense && seen.max_hi == params.problem.seqlen_k ? INT32_MAX : seen.max_hi;
  for (int word = 0; word < 4; ++word) {
    const bool exists = word * 32 < params.block_n;
    record.seen.bits[word] = exists ? bits_between(first_key + word * 32, seen.min_lo, keys_end) : 0xffffffffu;
  }
  return record;
}

// Keys of the block that some row of its m_blocks sees, row by row. Lane i looks at every 32nd row.
TANDEM_DEVICE void mark_seen_keys(const KeyBlockParams& params, const KeyBlockOrigin& origin, KeyBlockRecord& record) {
  const BackwardSequence& sequence = origin.sequence;
  uint32_t seen[4] = {0, 0, 0, 0};
  const int end = min_of(record.rows.m_end * params.block_m, sequence.q_len);
  TANDEM_NO_UNROLL
  for (int head = origin.first_head; head <= origin.last_head; ++head) {
    TANDEM_NO_UNROLL
    for (int row = record.rows.m_begin * params.block_m + ptx::lane_index(); row < end; row += ptx::kWarpThreads) {
      const BasicRowInterval<int> keys =
          narrowed_row_keys(params.problem, sequence.q_begin, row, sequence.q_len, sequence.k_len, head, origin.batch);
      TANDEM_UNROLL
      for (int word = 0; word < 4; ++word) {
        seen[word] |= bits_between(record.keys.first_key + word * 32, keys.lo, keys.hi);
      }
    }
  }
  TANDEM_UNROLL
  for (int word = 0; word < 4; ++word) {
    TANDEM_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) seen[word] |= ptx::shuffle_xor(seen[word], lanes);
    if (word * 32 < params.block_n) record.seen.bits[word] = seen[word];
  }
}

// What interval arrays leave of a record: fewer m_blocks; which of them need a mask, the load thread asks their bounds.
TANDEM_DEVICE void narrow_record(const KeyBlockParams& params, const KeyBlockOrigin& origin, KeyBlockRecord& record) {
  const int first_key = record.keys.first_key;
  int begin = INT32_MAX;
  int last = -1;
  bool full = false;
  TANDEM_NO_UNROLL
  for (int head = origin.first_head; head <= origin.last_head; ++head) {
    TANDEM_NO_UNROLL
    for (int m = record.rows.m_begin + ptx::lane_index(); m < record.rows.m_end; m += ptx::kWarpThreads) {
      const MBlockBounds bounds = ptx::load_global(
          params.problem.bounds + q_block_index(origin.sequence.m_block_begin + m, head, params.problem.nheads_q));
      if (bounds.max_hi <= first_key || bounds.min_lo >= first_key + params.block_n) continue;
      begin = min_of(begin, m);
      last = max_of(last, m);
      full = full || (bounds.max_lo <= first_key && bounds.min_hi >= first_key + params.block_n);
    }
  }
  begin = min_over_warp(begin);
  last = max_over_warp(last);
  record.rows.m_begin = last < 0 ? 0 : begin;
  record.rows.m_end = last + 1;
  if (!ptx::any_sync(full)) mark_seen_keys(params, origin, record);
}

constexpr int kKeyBlockThreads = 128;

TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kKeyBlockThreads, 1)
    key_blocks_kernel(const TANDEM_GRID_CONSTANT KeyBlockParams params) {
  ptx::launch_dependent_grid();
  ptx::wait_for_previous_grid();
  const BackwardParams& problem = params.problem;
  const bool dense = problem.sequences == nullptr;
  const int index = ptx::block_index() * (kKeyBlockThreads / ptx::kWarpThreads) + ptx::warp_index();
  const int key_block = index / problem.record_heads;
  if (key_block >= (dense ? params.dense_key_blocks : ptx::load_global(&problem.workspace->n_blocks))) return;
  KeyBlockOrigin origin = dense ? dense_key_block(problem, params.dense_m_blocks, key_block)
                                : packed_key_block(problem, params.block_n, key_block);
  if (params.heads_differ) {
    origin.first_head = (index - key_block * problem.record_heads) * problem.qheads_per_khead;
    origin.last_head = origin.first_head + problem.qheads_per_khead - 1;
  }
  KeyBlockRecord record = closed_record(params, origin);
  if (problem.bounds != nullptr) narrow_record(params, origin, record);
  if (ptx::lane_index() != 0) return;
  KeyBlockRecord* const out = params.records + index;
  ptx::store_global(&out->keys, record.keys);
  ptx::store_global(&out->rows, record.rows);
  ptx::store_global(&out->mask, record.mask);
  ptx::store_global(&out->sequence, record.sequence);
  ptx::store_global(&out->seen, record.seen);
}

}  // namespace tandem::sm90
