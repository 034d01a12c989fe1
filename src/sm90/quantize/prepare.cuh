#pragma once

#include <cstdint>

#include "core/int_math.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/quantize/params.h"
#include "sm90/quantize/scale.cuh"
#include "sm90/quantize/work.cuh"
#include "sm90/scan_sequences.cuh"

// Before the quantising kernels: the offsets of a packed problem, clamped (block 0), and scales without a row of their
// own or that several blocks join (all blocks).
namespace tandem::sm90 {

// All threads of one block call.
TANDEM_DEVICE void clamp_offsets(const PrepareQuantizeParams& params) {
  const int64_t count = int64_t{params.batch} + 1;
  int largest = 0;  // of the runs before
  for (int64_t first = 0; first < count; first += kPrepareThreads) {
    const int64_t index = first + ptx::thread_rank();
    int claimed = 0;
    if (index < count) {
      claimed = ptx::load_global(params.cu_seqlens.data + index * params.cu_seqlens.stride);
      claimed = min_of(max_of(claimed, 0), params.total);
    }
    const Scan scan = scan_block(claimed, Larger());
    const int offset = max_of(max_of(largest, scan.before), claimed);
    if (index < count) ptx::store_global(params.offsets + 1 + index, offset);
    largest = max_of(largest, scan.total);
  }
  if (ptx::thread_rank() == 0) {
    ptx::store_global(params.offsets, 0);
    ptx::store_global(params.offsets + 1 + count, params.total);
  }
}

TANDEM_DEVICE void set_smallest_scales(const PrepareQuantizeParams& params) {
  const int64_t first = int64_t{ptx::block_index()} * kPrepareThreads + ptx::thread_rank();
  const int64_t step = int64_t{ptx::grid_size()} * kPrepareThreads;
  for (int64_t index = first; index < params.scales; index += step) {
    const int64_t head_of_all = quotient(index, params.blocks);
    const int64_t batch = quotient(head_of_all, params.nheads);
    const int64_t block = index - head_of_all * params.blocks.divisor;
    const int64_t head = head_of_all - batch * params.nheads.divisor;
    ptx::store_global(scale_at(params.scale, batch, head, block), scale_for(0));
  }
}

TANDEM_KERNEL TANDEM_LAUNCH_BOUNDS(kPrepareThreads, 1)
    prepare_quantize_kernel(const TANDEM_GRID_CONSTANT PrepareQuantizeParams params) {
  if (ptx::thread_rank() == 0) ptx::check_dynamic_shared_base();
  ptx::launch_dependent_grid();
  if (params.offsets != nullptr && ptx::block_index() == 0) clamp_offsets(params);
  set_smallest_scales(params);
}

}  // namespace tandem::sm90
