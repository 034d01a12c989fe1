#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/backward/prepare_params.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/scan_sequences.cuh"

// Writes the sequences of a packed problem to the workspace, in the order in which they are worked on: those whose keys
// are seen by the most rows first, within runs of kPrepareThreads. One block.
namespace tandem::sm90 {

TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kPrepareThreads, 1)
    prepare_backward_kernel(const TANDEM_GRID_CONSTANT PrepareBackwardParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  const int num_sequences = params.lengths.batch + 2;
  Offsets offsets;
  int m_blocks = 0;
  int n_blocks = 0;
  for (int first = 0; first < num_sequences; first += kPrepareThreads) {
    const int index = first + ptx::thread_rank();
    const auto [q, k] = scan_sequence(params.lengths, index, offsets);
    const int rank = rank_by_work(k.len > 0 ? q.len : 0, min_of(num_sequences - first, kPrepareThreads));
    const int m_block_begin = blocks_before(ceil_div(q.rows, params.block_m), rank, m_blocks);
    const int n_block_begin = blocks_before(ceil_div(k.rows, params.block_n), rank, n_blocks);
    if (index < num_sequences) {
      auto* const place = reinterpret_cast<SequenceHalf*>(params.sequences + first + rank);
      ptx::store_global(place, SequenceHalf{q.begin, q.rows, q.len, k.begin});
      ptx::store_global(place + 1, SequenceHalf{k.rows, k.len, m_block_begin, n_block_begin});
    }
  }
  if (ptx::thread_rank() == 0) {
    ptx::store_global(reinterpret_cast<SequenceHalf*>(params.workspace), SequenceHalf{0, m_blocks, n_blocks, 0});
  }
}

}  // namespace tandem::sm90
