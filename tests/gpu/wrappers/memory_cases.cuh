#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "wrappers/case.h"

// Ordinary accesses of shared and global memory, matrices of fragments, atomics.
namespace tandem::sm90::wrappers {

struct TwoWords {
  uint32_t x, y;
};
struct FourWords {
  uint32_t x, y, z, w;
};

// The 16 words of each thread: 2, 4, 8 and 16 bytes at a time, in and out.
struct Accesses : CaseDefaults {
  static constexpr const char* kName = "accesses";
  static constexpr int kThreads = 64;
  static constexpr int kInWords = 16 * kThreads;
  static constexpr int kOutWords = 16 * kThreads;

  TANDEM_DEVICE static void run(const Params& params) {
    const int first = 16 * ptx::thread_rank();
    const uint32_t* in = params.in + first;
    uint32_t* out = params.out + first;
    const uint32_t smem = ptx::kDynamicSharedBase + static_cast<uint32_t>(first) * 4;
    ptx::store_shared(smem, ptx::load_global(reinterpret_cast<const FourWords*>(in)));
    ptx::store_shared(smem + 16, ptx::load_global(reinterpret_cast<const TwoWords*>(in + 4)));
    ptx::store_shared(smem + 24, ptx::load_global(in + 6));
    ptx::store_shared(smem + 28, ptx::load_global(in + 7));
    ptx::store_global(reinterpret_cast<FourWords*>(out), ptx::load_shared<FourWords>(smem + 16));
    ptx::store_global(reinterpret_cast<TwoWords*>(out + 4), ptx::load_shared<TwoWords>(smem));
    ptx::store_global(out + 6, ptx::load_shared<uint32_t>(smem + 8));
    ptx::store_global(out + 7, ptx::load_shared<uint32_t>(smem + 12));
    for (int i = 16; i < 32; ++i) {
      const uint16_t half = ptx::load_global(reinterpret_cast<const uint16_t*>(in) + i);
      ptx::store_global(reinterpret_cast<uint16_t*>(out) + i, half);
    }
  }
  static void expect(const Words& in, Words& out) {
    for (int i = 0; i < kOutWords; ++i) out[i] = i % 16 < 8 ? in[i ^ 4] : in[i];
  }
};

// Four 8x8 matrices in, by ldmatrix, plain or transposed; out by stmatrix, plain or transposed. Rows lie 48 bytes
// apart.
template <bool kLoadTransposed, bool kStoreTransposed>
struct Matrices : CaseDefaults {
  static constexpr const char* kName = kLoadTransposed    ? kStoreTransposed ? "matrices_tt" : "matrices_tn"
                                       : kStoreTransposed ? "matrices_nt"
                                                          : "matrices_nn";
  static constexpr int kThreads = 32;
  static constexpr int kInWords = 4 * 32;   // [matrix][row][4 words of 2 elements]
  static constexpr int kOutWords = 8 * 32;  // fragments [register][lane], then the matrices again

  TANDEM_DEVICE static void run(const Params& params) {
    const int lane = ptx::lane_index();  // row lane % 8 of matrix lane / 8
    const uint32_t row = ptx::kDynamicSharedBase + static_cast<uint32_t>(lane) * 48;
    ptx::store_shared(row, ptx::load_global(reinterpret_cast<const FourWords*>(params.in) + lane));
    ptx::block_sync();
    uint32_t registers[4];
    if constexpr (kLoadTransposed) {
      ptx::ldmatrix_x4_transposed(registers, row);
    } else {
      ptx::ldmatrix_x4(registers, row);
    }
    for (int r = 0; r < 4; ++r) ptx::store_global(params.out + r * 32 + lane, registers[r]);
    const uint32_t other = row + 4096;
    if constexpr (kStoreTransposed) {
      ptx::stmatrix_x4_transposed(other, registers);
    } else {
      ptx::stmatrix_x4(other, registers);
    }
    ptx::block_sync();
    ptx::store_global(reinterpret_cast<FourWords*>(params.out + 128) + lane, ptx::load_shared<FourWords>(other));
  }
  static uint32_t element(const Words& in, int matrix, int row, int column) {
    return in[matrix * 32 + row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
  }
  static void expect(const Words& in, Words& out) {
    for (int r = 0; r < 4; ++r) {
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4;
        const int column = lane % 4 * 2;
        const uint32_t low = kLoadTransposed ? element(in, r, column, row) : element(in, r, row, column);
        const uint32_t high = kLoadTransposed ? element(in, r, column + 1, row) : element(in, r, row, column + 1);
        out[r * 32 + lane] = low | high << 16;
      }
    }
    for (int i = 0; i < 128; ++i) {
      const int row = i % 32 / 4;
      const int column = i % 4 * 2;
      const bool transposed = kLoadTransposed != kStoreTransposed;
      const uint32_t low = transposed ? element(in, i / 32, column, row) : element(in, i / 32, row, column);
      const uint32_t high = transposed ? element(in, i / 32, column + 1, row) : element(in, i / 32, row, column + 1);
      out[128 + i] = low | high << 16;
    }
  }
};

// Counters of several blocks; a flag by which block 0 hands words to block 1.
struct Atomics : CaseDefaults {
  static constexpr const char* kName = "atomics";
  static constexpr int kThreads = 64;
  static constexpr int kBlocks = 2;
  static constexpr int kInWords = 64;
  static constexpr uint32_t kOutFill = 0;
  static constexpr int kOutWords = 4 + 64 + 64;  // counter, float sum, flag, releases; handed over; read

  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::thread_rank();
    ptx::atomic_add(params.out, static_cast<uint32_t>(t));
    ptx::reduce_add(reinterpret_cast<float*>(params.out + 1), static_cast<float>(t));
    ptx::reduce_add_release(params.out + 3, 2);
    if (ptx::block_index() == 0) {
      ptx::store_global(params.out + 4 + t, ptx::load_global(params.in + t));
      ptx::fence_gpu();
      ptx::block_sync();
      if (t == 0) ptx::store_release(params.out + 2, 7);
    } else {
      while (ptx::load_acquire(params.out + 2) != 7) {
      }
      ptx::store_global(params.out + 68 + t, ptx::load_global(params.out + 4 + (63 - t)));
    }
  }
  static void expect(const Words& in, Words& out) {
    out[0] = 2 * 63 * 64 / 2;
    out[1] = bits_of(2.0f * 63 * 64 / 2);
    out[2] = 7;
    out[3] = 2 * 2 * 64;
    for (int t = 0; t < 64; ++t) {
      out[4 + t] = in[t];
      out[68 + t] = in[63 - t];
    }
  }
};

// Single bytes, by threads side by side in one word; the largest of words that threads of several blocks offer.
struct BytesAndMaxima : CaseDefaults {
  static constexpr const char* kName = "bytes_and_maxima";
  static constexpr int kThreads = 64;
  static constexpr int kBlocks = 2;
  static constexpr int kInWords = 2 * kThreads;
  static constexpr uint32_t kOutFill = 7;
  static constexpr int kOutWords = 4 + 2 * kThreads / 4;  // maxima by t % 4, then the low bytes of the words

  TANDEM_DEVICE static void run(const Params& params) {
    const int t = ptx::block_index() * kThreads + ptx::thread_rank();
    const uint32_t word = ptx::load_global(params.in + t);
    ptx::reduce_max(params.out + t % 4, word);
    ptx::store_global(reinterpret_cast<uint8_t*>(params.out + 4) + t, static_cast<uint8_t>(word));
  }
  static void expect(const Words& in, Words& out) {
    for (int t = 0; t < kInWords; ++t) {
      if (out[t % 4] < in[t]) out[t % 4] = in[t];
      uint32_t& bytes = out[4 + t / 4];
      bytes = t % 4 == 0 ? in[t] & 0xff : bytes | (in[t] & 0xff) << (t % 4 * 8);
    }
  }
};

}  // namespace tandem::sm90::wrappers
