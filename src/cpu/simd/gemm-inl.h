// The one product of the tiled backend: C[i][lane] += sum over k of A(i, k) * B[k][lane], one SIMD lane a column.
//
// A is read one scalar at a time and broadcast, so its layout is free: rows far apart and k adjacent (K . Q^T), or rows
// adjacent and k far apart (V^T . P^T). B and C are rows of whole vectors. Every element is summed over k in order,
// from the first to the last, in each register block and on each instruction set with fused multiply-add alike. The sum
// starts at 0 and is added to C at the end, so that the rounding errors of a sum over many tiles do not grow with every
// key, but with every tile.

#if defined(TANDEM_CPU_SIMD_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_GEMM_INL_H_
#undef TANDEM_CPU_SIMD_GEMM_INL_H_
#else
#define TANDEM_CPU_SIMD_GEMM_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of 64 bytes or fewer: scratch is padded to 64 bytes, whatever the target.
template <typename T>
using Lanes = hn::CappedTag<T, 64 / sizeof(T)>;

// A register block is kBlockRows x kBlockVecs accumulators; with kBlockVecs vectors of B and a broadcast of A they fill
// the register file (32 registers on AVX-512 and NEON, 16 on AVX2 and SSE4).
constexpr size_t kBlockVecs = 2;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr size_t kBlockRows = 12;
#else
constexpr size_t kBlockRows = 6;
#endif

enum class ALayout { kDepthAdjacent, kRowsAdjacent };  // which index of A has stride 1; a_stride is the other's

template <typename T>
struct GemmArgs {
  size_t depth;  // k runs over [0, depth)
  const T* a;
  size_t a_stride;
  const T* b;
  size_t ldb;
  T* c;
  size_t ldc;
  bool accumulate;  // false: C is overwritten
};

// Addresses of A(0, k), A(1, k), ... for the current k. With rows far apart one pointer serves three of them
// (p, p + stride, p + 2 * stride are all one x86 addressing mode), which keeps 12 rows within the address registers.
template <typename T, size_t kRows, ALayout kLayout>
struct ARows {
  static constexpr bool kAdjacent = kLayout == ALayout::kRowsAdjacent;
  static constexpr size_t kRowsPerPointer = kAdjacent ? kRows : 3;
  static constexpr size_t kPointers = (kRows + kRowsPerPointer - 1) / kRowsPerPointer;

  HWY_INLINE ARows(const T* a, size_t a_stride) : stride(a_stride) {
    for (size_t p = 0; p < kPointers; ++p) pointers[p] = a + p * kRowsPerPointer * stride;
  }
  HWY_INLINE T at(size_t row) const {
    const T* pointer = pointers[row / kRowsPerPointer];
    return kAdjacent ? pointer[row] : pointer[row % kRowsPerPointer * stride];
  }
  HWY_INLINE void next() {
    for (size_t p = 0; p < kPointers; ++p) pointers[p] += kAdjacent ? stride : 1;
  }

  const T* pointers[kPointers];
  size_t stride;
};

template <typename T, size_t kRows, size_t kVecs, ALayout kLayout>
HWY_INLINE void gemm_block(const GemmArgs<T>& args, const T* first_a, T* c) {
  const Lanes<T> d;
  const size_t lanes = hn::Lanes(d);
  using Vec = hn::Vec<decltype(d)>;
  Vec acc[kRows][kVecs];
  const size_t ldc = args.ldc;
#pragma GCC unroll 12
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kVecs; ++v) {
      acc[i][v] = hn::Zero(d);
    }
  }
  ARows<T, kRows, kLayout> a(first_a, args.a_stride);
  const T* b = args.b;
  const size_t ldb = args.ldb;
  for (size_t k = args.depth; k != 0; --k) {
    Vec row_of_b[kVecs];
#pragma GCC unroll 2
    for (size_t v = 0; v < kVecs; ++v) row_of_b[v] = hn::Load(d, b + v * lanes);
#pragma GCC unroll 12
    for (size_t i = 0; i < kRows; ++i) {
      const Vec broadcast = hn::Set(d, a.at(i));
#pragma GCC unroll 2
      for (size_t v = 0; v < kVecs; ++v) acc[i][v] = hn::MulAdd(broadcast, row_of_b[v], acc[i][v]);
    }
    a.next();
    b += ldb;
  }
#pragma GCC unroll 12
  for (size_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (size_t v = 0; v < kVecs; ++v) {
      T* out = c + i * ldc + v * lanes;
      hn::Store(args.accumulate ? hn::Add(hn::Load(d, out), acc[i][v]) : acc[i][v], d, out);
    }
  }
}

template <ALayout kLayout, typename T>
HWY_INLINE void skip_rows(GemmArgs<T>& args, size_t rows) {
  args.a += rows * (kLayout == ALayout::kRowsAdjacent ? 1 : args.a_stride);
  args.c += rows * args.ldc;
}

template <typename T, size_t kRows, size_t kVecs, ALayout kLayout>
HWY_NOINLINE void gemm_blocks(size_t blocks, GemmArgs<T> args) {
  for (; blocks != 0; --blocks) {
    gemm_block<T, kRows, kVecs, kLayout>(args, args.a, args.c);
    skip_rows<kLayout>(args, kRows);
  }
}

// Runs `blocks` blocks of `height` rows each, 1 <= height <= kBlockRows.
template <typename T, size_t kVecs, ALayout kLayout, size_t kRows = kBlockRows>
HWY_INLINE void gemm_blocks_of(size_t height, size_t blocks, const GemmArgs<T>& args) {
  if (height == kRows) return gemm_blocks<T, kRows, kVecs, kLayout>(blocks, args);
  if constexpr (kRows > 1) gemm_blocks_of<T, kVecs, kLayout, kRows - 1>(height, blocks, args);
}

// C (rows x vecs vectors) = or += A (rows x depth) . B (depth x vecs vectors). B and C are aligned to a vector.
template <ALayout kLayout, typename T>
void gemm(size_t rows, size_t vecs, const GemmArgs<T>& args) {
  const size_t lanes = hn::Lanes(Lanes<T>());
  // Blocks of nearly equal height: a low remainder block would have too few accumulators to hide the latency.
  const size_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  if (blocks == 0) return;
  const size_t height = rows / blocks;
  const size_t taller = rows % blocks;  // how many blocks have one row more
  for (size_t v = 0; v < vecs; v += kBlockVecs) {
    GemmArgs<T> part = args;
    part.b += v * lanes;
    part.c += v * lanes;
    const bool narrow = vecs - v < kBlockVecs;
    const auto run = [&](size_t rows_each, size_t count) HWY_ATTR {
      if (count == 0) return;
      if (narrow) {
        gemm_blocks_of<T, 1, kLayout>(rows_each, count, part);
      } else {
        gemm_blocks_of<T, kBlockVecs, kLayout>(rows_each, count, part);
      }
      skip_rows<kLayout>(part, rows_each * count);
    };
    run(height + 1, taller);
    run(height, blocks - taller);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
