#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/smem_layout.cuh"
#include "wrappers/case.h"

// The copy engine. Boxes stick out of their tensor at the far end of every axis, loads also at the near end of axis 1.
namespace tandem::sm90::wrappers {

constexpr int product(const int (&sizes)[5], int rank) {
  int result = 1;
  for (int axis = 0; axis < rank; ++axis) result *= sizes[axis];
  return result;
}

// A tensor of 16-bit elements of up to five axes, and one box of it.
template <int kRankValue, Swizzle kSwizzleValue, int kCorner1 = -3>
struct BoxGeometry {
  static constexpr int kRank = kRankValue;
  static constexpr Swizzle kSwizzle = kSwizzleValue;
  static constexpr int kDims[5] = {80, 4, 3, 2, 3};
  static constexpr int kBox[5] = {static_cast<int>(kSwizzle) / 2, 8, 2, 1, 2};
  static constexpr int kCorner[5] = {40, kCorner1, 2, 1, 1};

  static constexpr int kTensorElems = product(kDims, kRank);
  static constexpr int kBoxElems = product(kBox, kRank);

  static TensorMapSpec map(const void* base) {
    TensorMapSpec spec;
    spec.base = base;
    spec.dtype = DType::kBf16;
    spec.rank = kRank;
    spec.swizzle = kSwizzle;
    int64_t stride = 2;
    for (int axis = 0; axis < kRank; ++axis) {
      spec.dims[axis] = kDims[axis];
      spec.box[axis] = kBox[axis];
      spec.strides_bytes[axis] = stride;
      stride *= kDims[axis];
    }
    return spec;
  }

  // Calls visit(element of the box in shared memory, element of the tensor or -1) for every element of the box.
  template <typename Visit>
  static void for_each(Visit visit) {
    for (int e = 0; e < kBoxElems; ++e) {
      int rest = e;
      int64_t stride = 1;
      int64_t element = 0;
      bool inside = true;
      for (int axis = 0; axis < kRank; ++axis) {
        const int position = kCorner[axis] + rest % kBox[axis];
        rest /= kBox[axis];
        inside = inside && position >= 0 && position < kDims[axis];
        element += position * stride;
        stride *= kDims[axis];
      }
      const uint32_t offset =
          swizzled(static_cast<uint32_t>(e) * 2 & ~15u, kSwizzle) + static_cast<uint32_t>(e) * 2 % 16;
      visit(static_cast<int>(offset / 2), inside ? element : -1);
    }
  }
};

inline uint32_t half_at(const Words& words, int64_t element) {
  return words[element / 2] >> (element % 2 * 16) & 0xffff;
}
inline void set_half(Words& words, int64_t element, uint32_t value) {
  const int shift = static_cast<int>(element % 2 * 16);
  words[element / 2] = (words[element / 2] & ~(0xffffu << shift)) | value << shift;
}

template <int kRank, Swizzle kSwizzle, int kCorner1 = -3>
struct TmaLoad : CaseDefaults {
  using Geometry = BoxGeometry<kRank, kSwizzle, kCorner1>;
  static constexpr bool k64 = kSwizzle == Swizzle::k64Bytes;
  static constexpr bool kBeyond = kCorner1 >= Geometry::kDims[1];  // nothing of the box lies in the tensor
  static constexpr const char* kName = kBeyond      ? "tma_load_beyond"
                                       : kRank == 2 ? k64 ? "tma_load_2d_64" : "tma_load_2d"
                                       : kRank == 3 ? "tma_load_3d"
                                       : kRank == 4 ? k64 ? "tma_load_4d_64" : "tma_load_4d"
                                                    : "tma_load_5d";
  static constexpr int kInWords = Geometry::kTensorElems / 2;
  static constexpr int kOutWords = Geometry::kBoxElems / 2;
  static TensorMapSpec load_map(const void* in) { return Geometry::map(in); }

  TANDEM_DEVICE static void run(const Params& params) {
    constexpr uint32_t kBarrier = ptx::kDynamicSharedBase;
    constexpr uint32_t kData = kBarrier + 1024;
    constexpr int c0 = Geometry::kCorner[0];
    constexpr int c1 = Geometry::kCorner[1];
    constexpr int c2 = Geometry::kCorner[2];
    constexpr int c3 = Geometry::kCorner[3];
    constexpr int c4 = Geometry::kCorner[4];
    if (ptx::thread_rank() == 0) {
      ptx::prefetch_tensor_map(&params.load_map);
      ptx::mbarrier_init(kBarrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(kBarrier, Geometry::kBoxElems * 2);
      if constexpr (kRank == 2) ptx::tma_load_2d(kData, &params.load_map, kBarrier, c0, c1);
      if constexpr (kRank == 3) ptx::tma_load_3d(kData, &params.load_map, kBarrier, c0, c1, c2);
      if constexpr (kRank == 4) ptx::tma_load_4d(kData, &params.load_map, kBarrier, c0, c1, c2, c3);
      if constexpr (kRank == 5) ptx::tma_load_5d(kData, &params.load_map, kBarrier, c0, c1, c2, c3, c4);
    }
    ptx::block_sync();
    ptx::mbarrier_wait(kBarrier, 0);
    for (int i = ptx::thread_rank(); i < kOutWords; i += kThreads) {
      ptx::store_global(params.out + i, ptx::load_shared<uint32_t>(kData + static_cast<uint32_t>(i) * 4));
    }
  }
  static void expect(const Words& in, Words& out) {
    Geometry::for_each(
        [&](int place, int64_t element) { set_half(out, place, element < 0 ? 0 : half_at(in, element)); });
  }
};

template <int kRank>
struct TmaStore : CaseDefaults {
  using Geometry = BoxGeometry<kRank, Swizzle::k128Bytes, 1>;  // stores begin inside the tensor
  static constexpr const char* kName = kRank == 2   ? "tma_store_2d"
                                       : kRank == 3 ? "tma_store_3d"
                                       : kRank == 4 ? "tma_store_4d"
                                                    : "tma_store_5d";
  static constexpr int kInWords = Geometry::kBoxElems / 2;
  static constexpr int kOutWords = Geometry::kTensorElems / 2;
  static TensorMapSpec store_map(void* out) { return Geometry::map(out); }

  TANDEM_DEVICE static void run(const Params& params) {
    constexpr uint32_t kData = ptx::kDynamicSharedBase;
    constexpr int c0 = Geometry::kCorner[0];
    constexpr int c1 = Geometry::kCorner[1];
    constexpr int c2 = Geometry::kCorner[2];
    constexpr int c3 = Geometry::kCorner[3];
    constexpr int c4 = Geometry::kCorner[4];
    for (int i = ptx::thread_rank(); i < kInWords; i += kThreads) {
      ptx::store_shared(kData + static_cast<uint32_t>(i) * 4, ptx::load_global(params.in + i));
    }
    ptx::fence_proxy_async_shared();
    ptx::block_sync();
    if (ptx::thread_rank() == 0) {
      if constexpr (kRank == 2) ptx::tma_store_2d(&params.store_map, kData, c0, c1);
      if constexpr (kRank == 3) ptx::tma_store_3d(&params.store_map, kData, c0, c1, c2);
      if constexpr (kRank == 4) ptx::tma_store_4d(&params.store_map, kData, c0, c1, c2, c3);
      if constexpr (kRank == 5) ptx::tma_store_5d(&params.store_map, kData, c0, c1, c2, c3, c4);
      ptx::bulk_commit();
      ptx::bulk_wait<0>();
    }
  }
  static void expect(const Words& in, Words& out) {
    Geometry::for_each([&](int place, int64_t element) {
      if (element >= 0) set_half(out, element, half_at(in, place));
    });
  }
};

// Plain runs of bytes: in, out, and added in fp32 (small integers: exact).
struct BulkCopies : CaseDefaults {
  static constexpr const char* kName = "bulk_copies";
  static constexpr int kInWords = 256;
  static constexpr int kOutWords = 3 * 256;
  static constexpr uint32_t kOutFill = 0x40400000;  // 3.0f
  static void input(Random& random, Words& in) {
    for (uint32_t& word : in) word = bits_of(static_cast<float>(random.below(1000)));
  }

  TANDEM_DEVICE static void run(const Params& params) {
    constexpr uint32_t kBarrier = ptx::kDynamicSharedBase;
    constexpr uint32_t kData = kBarrier + 1024;
    if (ptx::thread_rank() != 0) return;
    ptx::mbarrier_init(kBarrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(kBarrier, 1024);
    ptx::bulk_load(kData, params.in, 512, kBarrier);
    ptx::bulk_load(kData + 512, params.in + 128, 512, kBarrier);
    ptx::mbarrier_wait(kBarrier, 0);
    ptx::bulk_store(params.out, kData, 1024);
    ptx::bulk_commit();
    float* sums = reinterpret_cast<float*>(params.out + 256);
    ptx::bulk_reduce_add_f32(sums, kData, 1024);
    ptx::bulk_reduce_add_f32(sums, kData + 16, 1008);
    ptx::bulk_commit();
    ptx::bulk_wait_read<1>();
    ptx::bulk_wait_read<0>();
    ptx::store_shared(kData, 0x12345678u);  // read already
    ptx::bulk_wait<0>();
    for (int i = 0; i < 256; ++i) ptx::store_global(params.out + 512 + i, ptx::load_global(params.out + i));
  }
  static void expect(const Words& in, Words& out) {
    for (int i = 0; i < 256; ++i) {
      out[i] = in[i];
      out[256 + i] = bits_of(3.0f + float_of(in[i]) + (i < 252 ? float_of(in[i + 4]) : 0.0f));
      out[512 + i] = in[i];
    }
  }
};

}  // namespace tandem::sm90::wrappers
