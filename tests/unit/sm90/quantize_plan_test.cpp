#include "sm90/quantize/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sm90/quantize/smem.h"

namespace tandem::sm90 {
namespace {

using Change = std::function<void(QuantizeProblem&)>;

// 3 entries of 300 rows of 4 heads of 128 columns, contiguous; a scale for each block of 128 rows.
QuantizeProblem dense() {
  QuantizeProblem p;
  p.batch = 3;
  p.nheads = 4;
  p.headdim = 128;
  p.seqlen = p.total = 300;
  p.x = {nullptr, DType::kBf16, 300 * 512, 512, 128};
  p.out = {nullptr, DType::kE4m3, 300 * 512, 512, 128};
  p.scale.dtype = DType::kFp32;
  p.scale.batch_stride = 12;
  p.scale.head_stride = 3;
  p.scale.block_stride = 1;
  p.scale.blocks = 3;
  p.scale_per_head = p.scale_per_block = true;
  return p;
}

// 5 sequences in 1000 rows.
QuantizeProblem packed() {
  QuantizeProblem p = dense();
  p.packed = true;
  p.batch = 5;
  p.seqlen = 0;
  p.total = 1000;
  p.x.batch_stride = p.out.batch_stride = 0;
  p.scale.blocks = 8;
  return p;
}

void per_head(QuantizeProblem& p) {
  p.scale_per_block = false;
  p.scale.blocks = 1;
  p.scale.block_stride = 0;
}
void per_tensor(QuantizeProblem& p) {
  p.scale_per_head = p.scale_per_block = false;
  p.scale = {};
}
void transpose(QuantizeProblem& p) {
  p.transposed = true;
  p.out.row_stride = 304;
  p.out.head_stride = 304 * 128;
  p.out.batch_stride = 304 * 512;
}
void turn(QuantizeProblem& p) {
  p.rotary_pairs = 64;
  p.rotary_positions = 300;
  p.rotary_cos = p.rotary_sin = {nullptr, DType::kFp32, 64};
}

QuantizeKernel kernel_of(const Change& change) {
  QuantizeProblem p = dense();
  change(p);
  return plan_quantize(p).kernel;
}

TEST(QuantizePlan, KernelByWhatIsAskedFor) {
  EXPECT_EQ(kernel_of([](QuantizeProblem&) {}), QuantizeKernel::kPlain);
  EXPECT_EQ(kernel_of(transpose), QuantizeKernel::kTransposed);
  EXPECT_EQ(kernel_of([](QuantizeProblem& p) { p.rotate = true; }), QuantizeKernel::kRotated);
  EXPECT_EQ(kernel_of(turn), QuantizeKernel::kTurned);
  const auto both = [](QuantizeProblem& p) {
    turn(p);
    p.rotate = true;
  };
  EXPECT_EQ(kernel_of(both), QuantizeKernel::kTurned);
}

TEST(QuantizePlan, TheNarrowKernelTakesWhatIsNotAligned) {
  const Change changes[] = {
      [](QuantizeProblem& p) { p.headdim = 124; },
      [](QuantizeProblem& p) { p.x.data = reinterpret_cast<void*>(uintptr_t{8}); },
      [](QuantizeProblem& p) { p.x.row_stride = 516; },
      [](QuantizeProblem& p) { p.x.head_stride = 132; },
      [](QuantizeProblem& p) { p.x.batch_stride = 300 * 512 + 4; },
      [](QuantizeProblem& p) { p.out.data = reinterpret_cast<void*>(uintptr_t{4}); },
      [](QuantizeProblem& p) { p.out.row_stride = 516; },
      [](QuantizeProblem& p) {
        transpose(p);
        p.out.row_stride = 312;
      },
      [](QuantizeProblem& p) {
        turn(p);
        p.rotary_pairs = 60;
      },
      [](QuantizeProblem& p) {
        turn(p);
        p.rotary_pairs = 62;
        p.rotary_interleaved = true;
      },
      [](QuantizeProblem& p) {
        turn(p);
        p.rotary_cos.position_stride = 66;
      },
      [](QuantizeProblem& p) {
        turn(p);
        p.rotary_sin.data = reinterpret_cast<void*>(uintptr_t{8});
      },
      [](QuantizeProblem& p) {
        p.headdim = 48;
        p.rotate = true;
      },
  };
  for (size_t n = 0; n < std::size(changes); ++n) EXPECT_EQ(kernel_of(changes[n]), QuantizeKernel::kNarrow) << n;
  // 8-byte stores do for rows, and 4 pairs for neighbours.
  EXPECT_EQ(kernel_of([](QuantizeProblem& p) { p.out.row_stride = 520; }), QuantizeKernel::kPlain);
  const auto neighbours = [](QuantizeProblem& p) {
    turn(p);
    p.rotary_pairs = 60;
    p.rotary_interleaved = true;
  };
  EXPECT_EQ(kernel_of(neighbours), QuantizeKernel::kTurned);
  for (const int64_t headdim : {8, 16, 32, 64, 96, 128, 192, 256}) {
    const auto rotated = [&](QuantizeProblem& p) {
      p.headdim = headdim;
      p.rotate = true;
    };
    EXPECT_EQ(kernel_of(rotated), QuantizeKernel::kRotated) << headdim;
  }
}

TEST(QuantizePlan, RowOfTheHeadDim) {
  for (int64_t headdim = 1; headdim <= 256; ++headdim) {
    QuantizeProblem p = dense();
    p.headdim = headdim;
    const QuantizePlan plan = plan_quantize(p);
    EXPECT_GE(kQuantizeTiles[plan.tiles_row].headdim, headdim);
    if (plan.tiles_row == 0) continue;
    EXPECT_LT(kQuantizeTiles[plan.tiles_row - 1].headdim, headdim);
  }
}

TEST(QuantizePlan, EveryBlockFitsOnAnSm) {
  constexpr uint32_t kMost = 227 * 1024;
  for (const QuantizeTiles& tiles : kQuantizeTiles) {
    EXPECT_LE(turned_smem_bytes(tiles), kMost);
    EXPECT_LE(transposed_smem_bytes(tiles), kMost);
    EXPECT_LE(narrow_smem_bytes(tiles.headdim), kMost);
    EXPECT_EQ(quantize_threads(tiles) % 128, 0);  // max_over_block() reads four warps' words at once
    EXPECT_LE(quantize_threads(tiles), 512);      // whose words take 64 bytes
  }
}

// One read and one write where every block has a scale of its own; else the scales first.
TEST(QuantizePlan, Grids) {
  const auto plan_of = [](QuantizeProblem p, const Change& change) {
    change(p);
    return plan_quantize(p);
  };
  QuantizePlan plan = plan_of(dense(), [](QuantizeProblem&) {});
  EXPECT_EQ(plan.prepare_blocks, 0);
  EXPECT_EQ(plan.largest_blocks, 0);
  EXPECT_EQ(plan.blocks, 3 * 3 * 4);
  EXPECT_EQ(plan.params.pass, QuantizePass::kWhole);

  plan = plan_of(dense(), per_head);
  EXPECT_EQ(plan.prepare_blocks, 1);
  EXPECT_EQ(plan.prepare.scales, 12);
  EXPECT_EQ(plan.largest_blocks, plan.blocks);
  EXPECT_EQ(plan.params.pass, QuantizePass::kRound);
  EXPECT_EQ(plan_of(dense(), per_tensor).prepare.scales, 1);

  plan = plan_of(packed(), [](QuantizeProblem&) {});
  EXPECT_EQ(plan.prepare_blocks, 1);
  EXPECT_EQ(plan.prepare.scales, 5 * 4 * 8);
  EXPECT_EQ(plan.largest_blocks, 0);  // no sequence is longer than the axis
  EXPECT_EQ(plan.blocks, (1000 / 128 + 5 + 2) * 4);
  plan = plan_of(packed(), [](QuantizeProblem& p) { p.scale.blocks = 7; });
  EXPECT_GT(plan.largest_blocks, 0);
  EXPECT_EQ(plan.params.pass, QuantizePass::kWhole);
}

TEST(QuantizePlan, NothingToDo) {
  for (const Change& change : {Change([](QuantizeProblem& p) { p.batch = 0; }),
                               Change([](QuantizeProblem& p) { p.nheads = 0; }), Change([](QuantizeProblem& p) {
                                 p.seqlen = p.total = 0;
                                 p.scale.blocks = 0;
                               })}) {
    QuantizeProblem p = dense();
    change(p);
    EXPECT_EQ(plan_quantize(p).blocks, 0);
    EXPECT_EQ(plan_quantize(p).largest_blocks, 0);
    // Scales of nothing are written, too.
    per_tensor(p);
    EXPECT_EQ(plan_quantize(p).blocks, 0);
    EXPECT_EQ(plan_quantize(p).prepare_blocks, 1);
  }
}

// No grid is larger than a grid may be.
TEST(QuantizePlan, CountsBeyond31Bits) {
  QuantizeProblem p = dense();
  p.batch = int64_t{1} << 28;
  p.nheads = 64;
  p.seqlen = p.total = 129;
  const QuantizePlan plan = plan_quantize(p);
  EXPECT_EQ(plan.params.items, (int64_t{1} << 28) * 2 * 64);
  EXPECT_EQ(plan.blocks, INT32_MAX);
  per_head(p);
  EXPECT_EQ(plan_quantize(p).prepare.scales, (int64_t{1} << 28) * 64);
  EXPECT_LE(plan_quantize(p).prepare_blocks, INT32_MAX);
}

// D and 1 / sqrt(headdim) as core has them.
TEST(QuantizePlan, Rotation) {
  QuantizeProblem p = dense();
  p.rotate = true;
  p.seed = 77;
  const QuantizePlan plan = plan_quantize(p);
  EXPECT_FLOAT_EQ(plan.params.rotation_factor, 1 / std::sqrt(128.0f));
  for (int column = 0; column < 128; ++column) {
    const bool negative = (plan.params.negative[column / 32] >> column % 32 & 1) != 0;
    EXPECT_EQ(negative, rotation_is_negative(77, column)) << column;
  }
}

TEST(QuantizePlan, WorkspaceHoldsTheOffsets) {
  EXPECT_EQ(quantize_workspace(dense()).bytes, 0u);
  EXPECT_EQ(quantize_workspace(packed()).bytes, (5u + 3) * 4);
}

TEST(QuantizePlan, Types) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    QuantizeProblem p = dense();
    p.x.dtype = dtype;
    EXPECT_TRUE(quantize_supports(p).is_ok());
  }
  QuantizeProblem p = dense();
  p.x.dtype = DType::kFp32;
  EXPECT_EQ(quantize_supports(p).code(), TANDEM_UNSUPPORTED);
  EXPECT_EQ(quantize_supports(p).message(), "x.dtype is fp32; the sm90 backend quantises fp16 and bf16");
}

}  // namespace
}  // namespace tandem::sm90
