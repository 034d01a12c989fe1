#pragma once

#include <string>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/smem_layout.cuh"
#include "wrappers/case.h"

// What the backward relies on, and no ISA says: of A in shared memory, a warp's part of a wgmma reads the 16 rows of
// the warp's own results. So a warp that has waited for its own part may write these rows again, while other warps are
// still to issue theirs or wait for them.
//
// Round after round each warp writes its rows, meets the others, is late by a time of its own, multiplies, and writes
// the rows of the next round as soon as its own wait is over. B has a 1 in each row, so that results are elements of A:
// one that is not of this round, or not of this row, counts as wrong. With kRowsOff = 1 each warp writes the rows of
// the next one, and the test must fail: a warp that is late then finds rows of the round to come.
namespace tandem::sm90::wrappers {

template <ptx::Major kA>
struct WgmmaOwnRows : CaseDefaults {
#ifdef __CUDACC__
  static constexpr int kBlocks = 132;
  static constexpr int kRounds = 20000;
  static constexpr uint32_t kLongestDelay = 64;  // reads of shared memory, one after the other
#else
  static constexpr int kBlocks = 1;
  static constexpr int kRounds = 12;
  static constexpr uint32_t kLongestDelay = 8;
#endif
  static constexpr int kRowsOff = 0;
  static constexpr int kN = 256;
  static constexpr int kK = 64;
  static constexpr int kInWords = 1;
  static constexpr int kOutWords = kThreads;  // wrong results of each thread, in all blocks
  static constexpr uint32_t kOutFill = 0;

  using ATile = SwizzledTile<64, 128, Swizzle::k128Bytes>;  // (rows, k), or (k, rows): both are 64
  using BTile = SwizzledTile<kN, 128, Swizzle::k128Bytes>;  // (columns, k)
  static constexpr uint32_t kSmemA = ptx::kDynamicSharedBase;
  static constexpr uint32_t kSmemB = kSmemA + ATile::kBytes;
  static constexpr uint32_t kSmemZero = kSmemB + BTile::kBytes;

  // Integers that bf16 holds; of one element no two alike in 251 rounds.
  TANDEM_DEVICE static float element(int round, int row, int k) {
    return static_cast<float>((row * 67 + k * 13 + round) % 251);
  }
  TANDEM_DEVICE static uint32_t pair(float low, float high) {
    return ptx::float_to_bits(low) >> 16 | (ptx::float_to_bits(high) & 0xffff0000u);
  }
  TANDEM_DEVICE static uint32_t word_address(uint32_t tile, uint32_t chunk_offset, int byte) {
    return tile + chunk_offset + static_cast<uint32_t>(byte % 16);
  }

  // B: column n of the product is column n % 64 of A.
  TANDEM_DEVICE static void write_b() {
    for (int i = ptx::thread_rank(); i < kN * kK / 2; i += kThreads) {
      const int n = i / (kK / 2);
      const int k = i % (kK / 2) * 2;
      const uint32_t ones = pair(n % kK == k ? 1.0f : 0.0f, n % kK == k + 1 ? 1.0f : 0.0f);
      ptx::store_shared(word_address(kSmemB, BTile::chunk_offset(n, k * 2), k * 2), ones);
    }
    if (ptx::thread_rank() == 0) ptx::store_shared(kSmemZero, 0u);
  }

  // The 16 rows of a warp.
  TANDEM_DEVICE static void write_rows(int round) {
    const int first_row = (ptx::thread_rank() / ptx::kWarpThreads + kRowsOff) % 4 * 16;
    for (int i = ptx::lane_index(); i < 16 * kK / 2; i += ptx::kWarpThreads) {
      if constexpr (kA == ptx::Major::kK) {
        const int row = first_row + i / (kK / 2);
        const int k = i % (kK / 2) * 2;
        ptx::store_shared(word_address(kSmemA, ATile::chunk_offset(row, k * 2), k * 2),
                          pair(element(round, row, k), element(round, row, k + 1)));
      } else {
        const int row = first_row + i % 8 * 2;
        const int k = i / 8;
        ptx::store_shared(word_address(kSmemA, ATile::chunk_offset(k, row * 2), row * 2),
                          pair(element(round, row, k), element(round, row + 1, k)));
      }
    }
  }

  // Another one for each block, warp and round. Returns 0.
  TANDEM_DEVICE static uint32_t be_late(int round) {
    const int warp = ptx::block_index() * 4 + ptx::thread_rank() / ptx::kWarpThreads;
    uint32_t hash = static_cast<uint32_t>(round) * 0x9e3779b9u ^ static_cast<uint32_t>(warp) * 0x85ebca6bu;
    hash = (hash ^ hash >> 15) * 0x2c1b3c6du;
    hash ^= hash >> 13;
    uint32_t zero = 0;
    for (uint32_t i = hash % kLongestDelay; i > 0; --i) zero = ptx::load_shared<uint32_t>(kSmemZero + zero);
    return zero;
  }

  TANDEM_DEVICE static void multiply(float (&d)[kN / 2]) {
    ptx::wgmma_fence();
    TANDEM_UNROLL
    for (int step = 0; step < kK / 16; ++step) {
      const uint64_t a = kA == ptx::Major::kK ? ATile::k_major(kSmemA, step) : ATile::mn_major(kSmemA, step);
      ptx::Wgmma<Bf16, kN>::template ss<kA, ptx::Major::kK>(d, a, BTile::k_major(kSmemB, step), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_fence_operand(d);
  }

  TANDEM_DEVICE static uint32_t count_wrong(const float (&d)[kN / 2], int round) {
    const int t = ptx::thread_rank();
    uint32_t wrong = 0;
    TANDEM_UNROLL
    for (int i = 0; i < kN / 2; ++i) {
      const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + t % 4 * 2 + i % 2;
      wrong += d[i] != element(round, row, column % kK) ? 1 : 0;
    }
    return wrong;
  }

  TANDEM_DEVICE static void run(const Params& params) {
    write_b();
    ptx::fence_proxy_async_shared();
    ptx::block_sync();
    uint32_t wrong = 0;
    float d[kN / 2];
    TANDEM_NO_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      write_rows(round);
      ptx::fence_proxy_async_shared();
      ptx::block_sync();
      wrong += be_late(round);
      multiply(d);
      wrong += count_wrong(d, round);
    }
    ptx::atomic_add(params.out + ptx::thread_rank(), wrong);
  }

  static void expect(const Words&, Words&) {}
};

template <ptx::Major kA>
std::string case_name(WgmmaOwnRows<kA>) {
  return kA == ptx::Major::kK ? "wgmma_own_rows_k" : "wgmma_own_rows_mn";
}

}  // namespace tandem::sm90::wrappers
