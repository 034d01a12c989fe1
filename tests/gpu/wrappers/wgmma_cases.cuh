#pragma once

#include <string>
#include <type_traits>

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

// D = A B of one warpgroup: A (64, K), B (N, K), both given row-major; K is one row of the swizzle. Integers of at most
// 3: every sum is exact, so layouts show bit for bit. Reals: to a tolerance.
namespace tandem::sm90::wrappers {

enum class Values { kIntegers, kReals };

inline void encode(float value, Bf16& element) {
  element = to_bf16(value);
}
inline void encode(float value, Fp16& element) {
  element = to_fp16(value);
}
inline void encode(float value, E4m3& element) {
  element = to_e4m3(value);
}

// Integers of at most 3, or reals below 8.
inline float random_value(Random& random, Values values) {
  return values == Values::kIntegers ? static_cast<float>(random.below(7) - 3)
                                     : static_cast<float>(random.below(1 << 24)) * 0x1p-20f - 8.0f;
}
template <typename Element>
void random_elements(Random& random, Words& words, Values values) {
  for (uint32_t& word : words) {
    Element elements[4 / sizeof(Element)];
    for (Element& element : elements) encode(random_value(random, values), element);
    std::memcpy(&word, elements, sizeof(word));
  }
}
template <typename Element>
double element_at(const uint32_t* words, int index) {
  Element value;
  std::memcpy(&value, reinterpret_cast<const unsigned char*>(words) + index * sizeof(Element), sizeof(value));
  return to_float(value);
}

template <typename ElementType, int kNValue, bool kInRegisters, ptx::Major kA, ptx::Major kB,
          Swizzle kSwizzleValue = Swizzle::k128Bytes, Values kValuesValue = Values::kIntegers>
struct WgmmaCase : CaseDefaults {
  using Element = ElementType;
  static constexpr int kN = kNValue;
  static constexpr Swizzle kSwizzle = kSwizzleValue;
  static constexpr Values kValues = kValuesValue;
  static constexpr int kElementBytes = sizeof(Element);
  static constexpr int kRowBytes = static_cast<int>(kSwizzle);  // of K
  static constexpr int kK = kRowBytes / kElementBytes;
  static constexpr int kRowWords = kRowBytes / 4;
  static constexpr int kInWords = (64 + kN) * kRowWords;
  static constexpr int kOutWords = 64 * kN;
  static constexpr Kind kKind = Kind::kFloats;
  // |values| < 8, so products < 64, of which the fp8 sum keeps about 13 bits and the other some 23.
  static constexpr double kSumError = kElementBytes == 1 ? kK * 64 * 0x1p-13 : kK * 64 * 0x1p-23;
  static constexpr double kAbsolute = kValues == Values::kIntegers ? 0 : kSumError;

  static void input(Random& random, Words& in) { random_elements<Element>(random, in, kValues); }

  template <int kRows>
  using KMajorTile = SwizzledTile<kRows, kRowBytes, kSwizzle>;
  template <int kColumns>
  using MnMajorTile = SwizzledTile<kK, kColumns * kElementBytes, kSwizzle>;

  // (kRows, K) row-major in global memory to an operand tile.
  template <int kRows, ptx::Major kMajor>
  TANDEM_DEVICE static void stage_operand(uint32_t smem, const uint32_t* gmem) {
    if constexpr (kMajor == ptx::Major::kK) {
      for (int i = ptx::thread_rank(); i < kRows * kRowWords; i += kThreads) {
        const int byte = i % kRowWords * 4;
        const uint32_t offset = KMajorTile<kRows>::chunk_offset(i / kRowWords, byte) + static_cast<uint32_t>(byte % 16);
        ptx::store_shared(smem + offset, ptx::load_global(gmem + i));
      }
    } else {
      const auto* halves = reinterpret_cast<const uint16_t*>(gmem);
      for (int i = ptx::thread_rank(); i < kRows / 2 * kK; i += kThreads) {
        const int row = i % (kRows / 2) * 2;
        const int k = i / (kRows / 2);
        const uint32_t low = ptx::load_global(halves + row * kK + k);
        const uint32_t high = ptx::load_global(halves + (row + 1) * kK + k);
        const int byte = row * 2;
        ptx::store_shared(smem + MnMajorTile<kRows>::chunk_offset(k, byte) + static_cast<uint32_t>(byte % 16),
                          low | high << 16);
      }
    }
  }
  template <int kRows, ptx::Major kMajor>
  TANDEM_DEVICE static uint64_t descriptor(uint32_t smem, int step) {
    if constexpr (kMajor == ptx::Major::kK) {
      return KMajorTile<kRows>::k_major(smem, step);
    } else {
      return MnMajorTile<kRows>::mn_major(smem, step);
    }
  }

  TANDEM_DEVICE static void run(const Params& params) {
    constexpr uint32_t kSmemA = ptx::kDynamicSharedBase;
    constexpr uint32_t kSmemB = kSmemA + 64 * kRowBytes;
    const int t = ptx::thread_rank();
    stage_operand<64, kA>(kSmemA, params.in);
    stage_operand<kN, kB>(kSmemB, params.in + 64 * kRowWords);
    ptx::fence_proxy_async_shared();
    ptx::block_sync();
    uint32_t fragments[kRowBytes / 32][4];
    TANDEM_UNROLL
    for (int step = 0; step < kRowBytes / 32; ++step) {
      TANDEM_UNROLL
      for (int r = 0; r < 4; ++r) {  // registers 1, 3: 8 rows down; 2, 3: 16 bytes of K on
        const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8;
        fragments[step][r] = ptx::load_global(params.in + row * kRowWords + step * 8 + r / 2 * 4 + t % 4);
      }
    }
    float d[kN / 2];
    TANDEM_UNROLL
    for (int i = 0; i < kN / 2; ++i) d[i] = 1e30f;  // must not count
    ptx::wgmma_fence();
    TANDEM_UNROLL
    for (int step = 0; step < kRowBytes / 32; ++step) {
      const uint64_t b = descriptor<kN, kB>(kSmemB, step);
      if constexpr (kInRegisters) {
        ptx::Wgmma<Element, kN>::template rs<kB>(d, fragments[step], b, step > 0);
      } else {
        ptx::Wgmma<Element, kN>::template ss<kA, kB>(d, descriptor<64, kA>(kSmemA, step), b, step > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_fence_operand(d);
    TANDEM_UNROLL
    for (int i = 0; i < kN / 2; ++i) ptx::store_global(params.out + i * kThreads + t, ptx::float_to_bits(d[i]));
  }

  static double element(const Words& in, int row, int k) { return element_at<Element>(in.data(), row * kK + k); }
  static void expect(const Words& in, Words& out) {
    for (int i = 0; i < kN / 2; ++i) {
      for (int t = 0; t < kThreads; ++t) {
        const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + t % 4 * 2 + i % 2;
        double sum = 0;
        for (int k = 0; k < kK; ++k) sum += element(in, row, k) * element(in, 64 + column, k);
        out[i * kThreads + t] = bits_of(static_cast<float>(sum));
      }
    }
  }
};

template <typename Element, int kN, bool kInRegisters, ptx::Major kA, ptx::Major kB, Swizzle kSwizzle, Values kValues>
std::string case_name(WgmmaCase<Element, kN, kInRegisters, kA, kB, kSwizzle, kValues>) {
  const char* element = sizeof(Element) == 1 ? "e4m3" : std::is_same_v<Element, Bf16> ? "bf16" : "fp16";
  const auto major = [](ptx::Major m) { return m == ptx::Major::kK ? "k" : "mn"; };
  return std::string("wgmma_") + element + "_n" + std::to_string(kN) + (kInRegisters ? "_rs_" : "_ss_") + major(kA) +
         "_" + major(kB) + (kSwizzle == Swizzle::k64Bytes ? "_64" : "") + (kValues == Values::kReals ? "_reals" : "");
}

}  // namespace tandem::sm90::wrappers
