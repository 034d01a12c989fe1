// wgmma: who owns its registers when, descriptors, and how its sums are rounded; mma.sync. Layouts at large:
// wrapper_test.

#include <cmath>

#include "core/dtype.h"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/mma.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/smem_layout.cuh"
#include "unit/micro.h"

namespace tandem::model {
namespace {

using sm90::Swizzle;
using sm90::SwizzledTile;

using ATile = SwizzledTile<64, 128>;
using BTile = SwizzledTile<8, 128>;
using Product = ptx::Wgmma<Bf16, 8>;

constexpr uint32_t kA = kBase;
constexpr uint32_t kB = kBase + 8192;
constexpr uint32_t kOnes = 0x3f803f80;  // two bf16

// Ones in both operands: each product of 16 columns adds 16.
void fill_operands() {
  for (uint32_t i = static_cast<uint32_t>(ptx::thread_rank()); i < (8192 + 1024) / 4; i += 128)
    ptx::store_shared(kA + 4 * i, kOnes);
  ptx::fence_proxy_async_shared();
  ptx::block_sync();
}

void issue(float (&d)[4], bool accumulate) {
  Product::ss<>(d, ATile::k_major(kA, 0), BTile::k_major(kB, 0), accumulate);
}

RunResult run_warpgroup(std::function<void()> kernel) {
  return run_micro({128}, [kernel = std::move(kernel)] {
    fill_operands();
    kernel();
  });
}

TEST(Wgmma, ValuesComeAtTheWait) {
  const RunResult result = run_warpgroup([] {
    float d[4];
    ptx::wgmma_fence();
    issue(d, false);
    issue(d, true);  // on the same accumulators: in order, without a wait
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    for (const float value : d) EXPECT_EQ(value, 32.0f);
  });
  expect_finished(result);
}

TEST(Wgmma, WaitLeavesTheLatestGroups) {
  const RunResult result = run_warpgroup([] {
    float first[4] = {1, 1, 1, 1};
    float second[4];
    ptx::wgmma_fence();
    issue(first, true);
    ptx::wgmma_commit();
    issue(second, false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    EXPECT_EQ(first[2], 17.0f);
    EXPECT_NE(second[2], second[2]);  // NaN until its own wait
    ptx::wgmma_wait<0>();
    EXPECT_EQ(second[2], 16.0f);
  });
  expect_finished(result);
}

TEST(Wgmma, FragmentsComeBackUnchanged) {
  const RunResult result = run_warpgroup([] {
    float d[4];
    uint32_t fragment[4] = {kOnes, kOnes, kOnes, kOnes};
    ptx::wgmma_fence();
    Product::rs<>(d, fragment, BTile::k_major(kB, 0), false);
    Product::rs<>(d, fragment, BTile::k_major(kB, 1), true);  // two may read one fragment
    ptx::wgmma_commit();
    EXPECT_NE(fragment[1], kOnes);
    ptx::wgmma_wait<0>();
    EXPECT_EQ(fragment[1], kOnes);
    EXPECT_EQ(d[3], 32.0f);
  });
  expect_finished(result);
}

TEST(Wgmma, TouchedRegisters) {
  const auto touch = [](std::function<void(float (&)[4], uint32_t (&)[4])> kernel) {
    return run_warpgroup([=] {
      float d[4] = {};
      uint32_t fragment[4] = {kOnes, kOnes, kOnes, kOnes};
      ptx::wgmma_fence();
      Product::rs<>(d, fragment, BTile::k_major(kB, 0), false);
      ptx::wgmma_commit();
      kernel(d, fragment);
      ptx::wgmma_wait<0>();
    });
  };
  const auto kTouched = ReportKind::kTouchedAccumulator;
  expect_report(touch([](auto& d, auto&) { ptx::max(1.0f, d[0]); }), kTouched, "reads a register of a wgmma");
  expect_report(touch([](auto& d, auto&) { ptx::ex2(d[0] * 2.0f); }), kTouched, "reads a register of a wgmma");
  expect_report(touch([](auto& d, auto&) { ptx::store_shared(kA, d[1]); }), kTouched, "reads a register of a wgmma");
  expect_report(touch([](auto& d, auto&) { d[2] = 0; }), kTouched, "an accumulator, register 2, was written");
  expect_report(touch([](auto&, auto& fragment) { fragment[3] = 0; }), kTouched,
                "an A fragment, register 3, was written");
}

TEST(Wgmma, FenceBeforeAndAfterWrites) {
  expect_report(run_warpgroup([] {
                  float d[4];
                  issue(d, false);
                }),
                ReportKind::kMissingWgmmaFence, "there has been no wgmma_fence()");
  expect_report(run_warpgroup([] {
                  float d[4];
                  ptx::wgmma_fence();
                  issue(d, false);
                  ptx::wgmma_commit();
                  ptx::wgmma_wait<0>();
                  d[1] += 1;
                  issue(d, true);
                }),
                ReportKind::kMissingWgmmaFence, "an accumulator, register 1: changed since");
}

TEST(Wgmma, MustBeWaitedFor) {
  expect_report(run_warpgroup([] {
                  float d[4];
                  ptx::wgmma_fence();
                  issue(d, false);
                  ptx::wgmma_commit();
                }),
                ReportKind::kUnfinishedAtExit, "without having waited for its wgmmas");
}

TEST(Wgmma, TheWarpgroupAgrees) {
  expect_report(run_warpgroup([] {
                  float d[4];
                  ptx::wgmma_fence();
                  issue(d, ptx::thread_rank() < 64);
                }),
                ReportKind::kCollective, "`accumulate` differ");
  expect_report(run_warpgroup([] {
                  float d[4];
                  ptx::wgmma_fence();
                  if (ptx::thread_rank() / 32 == 2) ptx::wgmma_commit();
                  issue(d, false);
                }),
                ReportKind::kCollective, "have not committed the same");
}

TEST(Wgmma, OperandsMustBeWritten) {
  const RunResult result = run_micro({128}, [] {
    float d[4];
    ptx::wgmma_fence();
    issue(d, false);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  });
  expect_report(result, ReportKind::kUnwrittenRead, "wgmma");
}

// What ordinary stores have written, the thread that wrote it makes visible to the async proxy.
TEST(Wgmma, OperandsMustBeFenced) {
  const auto run = [](bool every_thread_fences) {
    return run_warpgroup([=] {
      if (ptx::thread_rank() < 2) ptx::store_shared(kB + 8 * static_cast<uint32_t>(ptx::thread_rank()), kOnes);
      if (ptx::thread_rank() != 1 || every_thread_fences) ptx::fence_proxy_async_shared();
      ptx::block_sync();
      float d[4];
      ptx::wgmma_fence();
      issue(d, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
    });
  };
  expect_finished(run(true));
  expect_report(run(false), ReportKind::kMissingProxyFence, "which has not called fence_proxy_async_shared()");
}

// What a wgmma reads is its own until all warps of the warpgroup have waited for it.
TEST(Wgmma, OperandsBeingRead) {
  const auto overwrite = [](bool every_warp_waits, uint32_t address) {
    return run_warpgroup([=] {
      float d[4];
      ptx::wgmma_fence();
      issue(d, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_fence();
      issue(d, false);
      ptx::wgmma_commit();
      if (every_warp_waits || ptx::warp_index() == 0) ptx::wgmma_wait<0>();
      ptx::block_sync();
      if (ptx::thread_rank() == 5) ptx::store_shared(address, 0u);
      ptx::block_sync();
      ptx::wgmma_wait<0>();
    });
  };
  expect_finished(overwrite(true, kA));
  expect_finished(overwrite(true, kB + 1020));
  expect_finished(overwrite(false, kB + 1024));
  expect_report(overwrite(false, kA + 8188), ReportKind::kRace, "read in wgmma at product_test.cpp");
  expect_report(overwrite(false, kB + 1020), ReportKind::kRace, "not all its threads have waited for it");
}

// Of A in shared memory a warp's part of the product reads the warp's own 16 rows: those it may write again when it has
// waited itself.
TEST(Wgmma, EachWarpReadsItsRowsOfA) {
  const auto overwrite = [](int rows_on) {
    return run_warpgroup([=] {
      float d[4];
      ptx::wgmma_fence();
      issue(d, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      const int row = (ptx::warp_index() * 16 + rows_on) % 64;
      if (ptx::lane_index() == 0) ptx::store_shared(kA + static_cast<uint32_t>(row) * 128, 0u);
    });
  };
  expect_finished(overwrite(0));
  expect_finished(overwrite(15));
  expect_report(overwrite(16), ReportKind::kRace, "wgmma");
}

TEST(Mma, RegistersAreOrdinary) {
  const RunResult result = run_micro({32}, [] {
    float d[4] = {1, 2, 3, 4};
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    ptx::mma_m16n8k16<Bf16>(d, ones, kOnes, kOnes);
    ptx::mma_m16n8k16<Bf16>(d, ones, 0, 0);
    EXPECT_EQ(d[0], 17.0f);
    EXPECT_EQ(d[3], 20.0f);
  });
  expect_finished(result);
}

TEST(Mma, ReadsNoRegisterOfAWgmma) {
  const RunResult result = run_warpgroup([] {
    float d[4];
    ptx::wgmma_fence();
    issue(d, false);
    ptx::wgmma_commit();
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
    ptx::mma_m16n8k16<Bf16>(d, ones, kOnes, kOnes);
  });
  expect_report(result, ReportKind::kTouchedAccumulator, "reads a register of a wgmma");
}

TEST(Mma, TheWholeWarpCalls) {
  const RunResult result = run_micro({32}, [] {
    float d[4] = {};
    const uint32_t a[4] = {};
    if (ptx::lane_index() != 7) ptx::mma_m16n8k16<Fp16>(d, a, 0, 0);
  });
  expect_report(result, ReportKind::kCollective, "mma");
}

// The canonical layouts of the ISA: T elements make 16 bytes; a K-major operand is rows of 8 x 16 bytes under the
// 128-byte swizzle, and 8 x 16-byte matrices, leading and stride apart, without one.
TEST(Descriptor, AddressesWithoutSwizzle) {
  const MatrixDescriptor d((0x400 >> 4) | uint64_t{0x80 >> 4} << 16 | uint64_t{0x100 >> 4} << 32);
  EXPECT_EQ(d.swizzle_bytes, 16);
  EXPECT_EQ(k_major_chunk(d, 0, 0), 0x400u);
  EXPECT_EQ(k_major_chunk(d, 3, 0), 0x430u);
  EXPECT_EQ(k_major_chunk(d, 3, 16), 0x4b0u);   // leading
  EXPECT_EQ(k_major_chunk(d, 11, 16), 0x5b0u);  // and stride
  EXPECT_EQ(mn_major_chunk(d, 8, 0), 0x500u);   // stride
  EXPECT_EQ(mn_major_chunk(d, 8, 9), 0x590u);   // leading, and one row of 16 bytes
}

TEST(Descriptor, AddressesWithSwizzle) {
  const MatrixDescriptor d128((0x400 >> 4) | uint64_t{0x2000 >> 4} << 16 | uint64_t{0x400 >> 4} << 32 |
                              uint64_t{1} << 62);
  EXPECT_EQ(d128.swizzle_bytes, 128);
  EXPECT_EQ(k_major_chunk(d128, 3, 16), 0x400u + 3 * 128 + ((1 ^ 3) * 16));
  EXPECT_EQ(k_major_chunk(d128, 9, 16), 0x800u + 1 * 128 + ((1 ^ 1) * 16));
  EXPECT_EQ(mn_major_chunk(d128, 72, 10), 0x2400u + 0x400 + 2 * 128 + ((1 ^ 2) * 16));
  const MatrixDescriptor d32((0x400 >> 4) | uint64_t{0x100 >> 4} << 32 | uint64_t{3} << 62);
  EXPECT_EQ(d32.swizzle_bytes, 32);
  EXPECT_EQ(k_major_chunk(d32, 5, 0), 0x400u + 5 * 32 + 16);  // bit 7 of 0x4a0 is set
}

TEST(Descriptor, Refusals) {
  const uint64_t good = BTile::k_major(kB, 1);
  EXPECT_EQ(refusal(MatrixDescriptor(good), false, 64), "");
  EXPECT_NE(refusal(MatrixDescriptor(good | uint64_t{1} << 14), false, 64), "");  // reserved
  EXPECT_NE(refusal(MatrixDescriptor(good | uint64_t{2} << 49), false, 64), "");  // base offset
  EXPECT_NE(refusal(MatrixDescriptor(good + 128 / 16), false, 64), "");           // begins at row 1
  EXPECT_NE(refusal(MatrixDescriptor(good & ~(uint64_t{0x3fff} << 32)), false, 64), "");
  EXPECT_EQ(refusal(MatrixDescriptor(good & ~(uint64_t{0x3fff} << 32)), false, 8), "");  // 8 rows need no stride
}

// d of one product whose A is the fragment's and whose B is ones, onto `d`.
template <typename Element>
float sum_of_one_row(float d_before, std::vector<float> row) {
  row.resize(sizeof(Element) == 1 ? 32 : 16);
  float result = 0;
  const RunResult run = run_micro({128}, [&] {
    constexpr uint32_t kOnesOfElement = sizeof(Element) == 1 ? 0x38383838 : kOnes;
    for (uint32_t i = static_cast<uint32_t>(ptx::thread_rank()); i < 1024 / 4; i += 128) {
      ptx::store_shared(kB + 4 * i, kOnesOfElement);
    }
    ptx::fence_proxy_async_shared();
    ptx::block_sync();
    uint32_t fragment[4] = {};
    const size_t per_register = 4 / sizeof(Element);
    if (ptx::thread_rank() < 4) {  // row 0: registers 0 and 2
      for (size_t r = 0; r < 4; r += 2) {
        const size_t first = static_cast<size_t>(ptx::thread_rank()) * per_register + r / 2 * 4 * per_register;
        for (size_t i = 0; i < per_register; ++i) {
          const float x = row[first + i];
          const uint32_t bits = sizeof(Element) == 1 ? to_e4m3(x).bits : to_bf16(x).bits;
          fragment[r] |= bits << (32 / per_register * i);
        }
      }
    }
    float d[4] = {d_before, 0, 0, 0};
    ptx::wgmma_fence();
    ptx::Wgmma<Element, 8>::template rs<>(d, fragment, BTile::k_major(kB, 0), true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (ptx::thread_rank() == 0) result = d[0];
  });
  expect_finished(run);
  return result;
}

// What the H200 shows (golden_test): terms are cut 25 bits below the largest exponent, 13 bits in fp8; so are results,
// to 23 and 13 bits. All towards zero.
TEST(Rounding, SixteenBitOperands) {
  EXPECT_EQ(sum_of_one_row<Bf16>(1.0f, {0x1p-23f}), 1.0f + 0x1p-23f);
  EXPECT_EQ(sum_of_one_row<Bf16>(1.0f, {0x1p-24f}), 1.0f);                       // the result is cut, not rounded
  EXPECT_EQ(sum_of_one_row<Bf16>(1.0f, {0x1p-24f, 0x1p-24f}), 1.0f + 0x1p-23f);  // the terms were not
  EXPECT_EQ(sum_of_one_row<Bf16>(1.0f, {0x1p-25f, 0x1p-25f, 0x1p-25f, 0x1p-25f}), 1.0f + 0x1p-23f);
  EXPECT_EQ(sum_of_one_row<Bf16>(1.0f, std::vector<float>(16, 0x1p-26f)), 1.0f);  // but here they are
  EXPECT_EQ(sum_of_one_row<Bf16>(0.0f, {}), 0.0f);
  EXPECT_EQ(sum_of_one_row<Bf16>(0.0f, {0x1p100f, -0x1p100f, 3.0f}), 0.0f);
}

TEST(Rounding, Fp8Operands) {
  EXPECT_EQ(sum_of_one_row<E4m3>(1.0f, {0x1p-6f}), 1.0f + 0x1p-6f);
  EXPECT_EQ(sum_of_one_row<E4m3>(256.0f, {0x1p-6f}), 256.0f);
  EXPECT_EQ(sum_of_one_row<E4m3>(128.0f, {0x1p-6f}), 128.0f + 0x1p-6f);
  EXPECT_EQ(sum_of_one_row<E4m3>(256.0f, std::vector<float>(32, 0x1p-6f)), 256.0f);
}

TEST(Rounding, InfinitiesAndNans) {
  EXPECT_EQ(sum_of_one_row<Bf16>(1.0f, {INFINITY, 2.0f}), INFINITY);
  EXPECT_TRUE(std::isnan(sum_of_one_row<Bf16>(1.0f, {INFINITY, -INFINITY})));
  EXPECT_TRUE(std::isnan(sum_of_one_row<Bf16>(NAN, {1.0f})));
  EXPECT_EQ(sum_of_one_row<Bf16>(-INFINITY, {1.0f}), -INFINITY);
}

}  // namespace
}  // namespace tandem::model
