#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/forward/prepare_params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/scan_sequences.cuh"

// Writes the sequences of a packed problem to the workspace, in the order in which they are worked on: those whose rows
// see the most keys first, within runs of kPrepareThreads. One block.
namespace tandem::sm90 {

TANDEM_DEVICE PackedSequence packed_sequence(const ScannedSequence& scanned, int number, int block_m) {
  PackedSequence sequence{};
  sequence.q_begin = scanned.q.begin;
  sequence.q_rows = scanned.q.rows;
  sequence.q_len = scanned.q.len;
  sequence.k_begin = scanned.k.begin;
  sequence.k_len = scanned.k.len;
  sequence.m_blocks = ceil_div(scanned.q.rows, block_m);
  sequence.number = number;
  return sequence;
}

// A dense problem needs the counter only. One thread.
TANDEM_KERNEL reset_kernel(ForwardWorkspace* workspace) {
  ptx::launch_dependent_grid();
  ptx::store_global(&workspace->next_tile, uint32_t{0});
}

TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kPrepareThreads, 1) prepare_kernel(const TANDEM_GRID_CONSTANT PrepareParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  const int num_sequences = params.lengths.batch + 2;
  Offsets offsets;
  int m_blocks = 0;
  for (int first = 0; first < num_sequences; first += kPrepareThreads) {
    const int index = first + ptx::thread_rank();
    PackedSequence sequence = packed_sequence(scan_sequence(params.lengths, index, offsets), index - 1, params.block_m);
    const int rank =
        rank_by_work(sequence.q_len > 0 ? sequence.k_len : 0, min_of(num_sequences - first, kPrepareThreads));
    sequence.block_begin = blocks_before(sequence.m_blocks, rank, m_blocks);
    if (index < num_sequences) {
      auto* const place = reinterpret_cast<SequenceHalf*>(params.sequences + first + rank);
      ptx::store_global(place, SequenceHalf{sequence.q_begin, sequence.q_rows, sequence.q_len, sequence.k_begin});
      ptx::store_global(place + 1,
                        SequenceHalf{sequence.k_len, sequence.m_blocks, sequence.block_begin, sequence.number});
    }
  }
  if (ptx::thread_rank() == 0) {
    ptx::store_global(&params.workspace->next_tile, uint32_t{0});
    ptx::store_global(&params.workspace->m_blocks, m_blocks);
  }
}

}  // namespace tandem::sm90
