#include "sm90/quantize/plan.h"

#include <cmath>
#include <string>

#include "core/int_math.h"
#include "sm90/problem_parts.h"
#include "sm90/quantize/smem.h"

namespace tandem::sm90 {
namespace {

constexpr int64_t kMaxGrid = INT32_MAX;   // blocks take several items each beyond it
constexpr int64_t kSharingGrid = 4096;    // most of its items have nothing to do
constexpr int64_t kScalesOfBlock = 4096;  // of the grid that prepares

bool is_aligned(const void* data, int64_t strides, int64_t element_bytes, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 && strides * element_bytes % bytes == 0;
}

bool is_aligned(const Tensor& tensor, int64_t bytes) {
  return is_aligned(tensor.data, tensor.batch_stride | tensor.row_stride | tensor.head_stride,
                    dtype_bytes(tensor.dtype), bytes);
}

bool is_aligned(const RotaryTable& table, int64_t bytes) {
  return is_aligned(table.data, table.position_stride, dtype_bytes(table.dtype), bytes);
}

// Do the columns of each chunk of 8 turn together with those of one other, or with themselves?
bool has_wide_rotary(const QuantizeProblem& p) {
  if (p.rotary_pairs == 0) return true;
  return p.rotary_pairs % (p.rotary_interleaved ? 4 : 8) == 0 && is_aligned(p.rotary_cos, 16) &&
         is_aligned(p.rotary_sin, 16);
}

bool has_wide_rotation(const QuantizeProblem& p) {
  return !p.rotate || is_power_of_two(p.headdim) || p.headdim == 96 || p.headdim == 192;
}

bool is_wide(const QuantizeProblem& p) {
  return p.headdim % 8 == 0 && is_aligned(p.x, 16) && is_aligned(p.out, p.transposed ? 16 : 8) && has_wide_rotary(p) &&
         has_wide_rotation(p);
}

QuantizeKernel choose_kernel(const QuantizeProblem& p) {
  if (!is_wide(p)) return QuantizeKernel::kNarrow;
  if (p.transposed) return QuantizeKernel::kTransposed;
  if (p.rotary_pairs > 0) return QuantizeKernel::kTurned;
  return p.rotate ? QuantizeKernel::kRotated : QuantizeKernel::kPlain;
}

int choose_row(int64_t headdim) {
  int row = 0;
  while (kQuantizeTiles[row].headdim < headdim) ++row;
  return row;
}

uint32_t smem_of(QuantizeKernel kernel, const QuantizeTiles& tiles, int64_t headdim) {
  switch (kernel) {
    case QuantizeKernel::kPlain: return 64;
    case QuantizeKernel::kTransposed: return transposed_smem_bytes(tiles);
    case QuantizeKernel::kRotated:
    case QuantizeKernel::kTurned: return turned_smem_bytes(tiles);
    default: return narrow_smem_bytes(static_cast<int>(headdim));
  }
}

Divisor divisor(int64_t value) {
  return Divisor(static_cast<uint32_t>(max_of(value, 1)));
}

int64_t count_items(const QuantizeProblem& p) {
  const int64_t of_head =
      p.packed ? p.total / kQuantizeRows + p.batch + 2 : p.batch * ceil_div(p.seqlen, kScaleBlockRows);
  const bool has_elements = p.packed ? p.total > 0 || p.transposed : p.seqlen > 0;
  return has_elements ? of_head * p.nheads : 0;
}

int64_t count_scales(const QuantizeProblem& p) {
  return p.scale_per_head ? p.batch * p.nheads * p.scale.blocks : 1;
}

// Every block of a dense problem has rows of its own, but for a scale that it shares.
bool all_scales_are_found(const QuantizeProblem& p) {
  return p.scale_per_block && !p.packed;
}

// Whether blocks share scales: with a caller's axis that may be too short it depends on lengths in device memory.
bool may_share_scales(const QuantizeProblem& p) {
  return !p.scale_per_block || (p.packed && p.scale.blocks < ceil_div(p.total, kScaleBlockRows));
}

void set_rows(const QuantizeProblem& p, QuantizeParams& params) {
  params.scale_per_block = p.scale_per_block;
  params.transposed = p.transposed;
  params.headdim = static_cast<int>(p.headdim);
  params.batch = static_cast<int>(p.batch);
  params.seqlen = static_cast<int>(p.seqlen);
  params.nheads = divisor(p.nheads);
  params.blocks = divisor(ceil_div(p.seqlen, kScaleBlockRows));
  params.items = count_items(p);
  if (p.packed) params.offsets = static_cast<const int*>(p.exec.workspace);
  params.seqused = device_vector(p.seqused);
  params.x = p.x;
  params.out = p.out;
  params.scale = p.scale;
  params.last_scale = p.scale.blocks - 1;
}

void set_turns(const QuantizeProblem& p, QuantizeParams& params) {
  params.cos = p.rotary_cos;
  params.sin = p.rotary_sin;
  params.positions = static_cast<int>(p.rotary_positions);
  params.pairs = static_cast<int>(p.rotary_pairs);
  params.interleaved = p.rotary_interleaved;
  params.rotary_offset = device_vector(p.rotary_offset);
  params.rotate = p.rotate;
  params.rotation_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(p.headdim)));
  for (int column = 0; p.rotate && column < params.headdim; ++column) {
    const uint32_t bit = rotation_is_negative(p.seed, column) ? 1u << column % 32 : 0;
    params.negative[column / 32] |= bit;
  }
}

void plan_preparation(const QuantizeProblem& p, QuantizePlan& plan) {
  PrepareQuantizeParams& prepare = plan.prepare;
  if (p.packed) {
    prepare.offsets = static_cast<int*>(p.exec.workspace);
    prepare.cu_seqlens = device_vector(p.cu_seqlens);
    prepare.batch = static_cast<int>(p.batch);
    prepare.total = static_cast<int>(p.total);
  }
  prepare.scale = p.scale;
  prepare.scales = all_scales_are_found(p) ? 0 : count_scales(p);
  prepare.nheads = divisor(p.nheads);
  prepare.blocks = divisor(p.scale.blocks);
  const int64_t for_scales = min_of(ceil_div(prepare.scales, kScalesOfBlock), kMaxGrid);
  plan.prepare_blocks = max_of(for_scales, p.packed ? 1 : 0);
}

}  // namespace

Status quantize_supports(const QuantizeProblem& problem) {
  if (is_16bit(problem.x.dtype)) return Status::ok();
  return Status::unsupported("x.dtype is " + std::string(dtype_name(problem.x.dtype)) +
                             "; the sm90 backend quantises fp16 and bf16");
}

// Packed: the offsets, clamped.
Workspace quantize_workspace(const QuantizeProblem& problem) {
  Workspace workspace;
  if (problem.packed) workspace.bytes = static_cast<uint64_t>(problem.batch + 3) * sizeof(int);
  return workspace;
}

QuantizePlan plan_quantize(const QuantizeProblem& problem) {
  QuantizePlan plan;
  plan_preparation(problem, plan);
  plan.kernel = choose_kernel(problem);
  plan.tiles_row = choose_row(problem.headdim);
  plan.dtype = problem.x.dtype;
  const QuantizeTiles& tiles = kQuantizeTiles[plan.tiles_row];
  plan.threads = plan.kernel == QuantizeKernel::kNarrow ? kNarrowThreads : quantize_threads(tiles);
  plan.smem_bytes = smem_of(plan.kernel, tiles, problem.headdim);
  set_rows(problem, plan.params);
  set_turns(problem, plan.params);
  plan.params.pass = problem.scale_per_block ? QuantizePass::kWhole : QuantizePass::kRound;
  plan.blocks = min_of(plan.params.items, kMaxGrid);
  if (may_share_scales(problem)) {
    plan.largest_blocks = problem.scale_per_block ? min_of(plan.blocks, kSharingGrid) : plan.blocks;
  }
  return plan;
}

}  // namespace tandem::sm90
