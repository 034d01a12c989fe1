#pragma once

#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/mma.cuh"
#include "wrappers/wgmma_cases.cuh"

// Matrix products of one warp. Values as wgmma's cases have them: integers are exact, reals to a tolerance.
namespace tandem::sm90::wrappers {

// D = C + A B in each of four warps: A (16, 16), B^T (8, 16) and C (16, 8), row-major, warp after warp.
template <typename ElementType, Values kValuesValue>
struct MmaCase : CaseDefaults {
  using Element = ElementType;
  static constexpr Values kValues = kValuesValue;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRowWords = 8;  // of K
  static constexpr int kAWords = 16 * kRowWords;
  static constexpr int kBWords = 8 * kRowWords;
  static constexpr int kDWords = 16 * 8;
  static constexpr int kWarpWords = kAWords + kBWords + kDWords;
  static constexpr int kInWords = kWarps * kWarpWords;
  static constexpr int kOutWords = kWarps * kDWords;
  static constexpr Kind kKind = Kind::kFloats;
  // |values| < 8, so products < 64, of which the sum keeps some 23 bits.
  static constexpr double kAbsolute = kValues == Values::kIntegers ? 0 : 16 * 64 * 0x1p-23;

  static void input(Random& random, Words& in) {
    random_elements<Element>(random, in, kValues);
    for (int warp = 0; warp < kWarps; ++warp) {
      for (int i = kAWords + kBWords; i < kWarpWords; ++i) {
        in[warp * kWarpWords + i] = bits_of(random_value(random, kValues));
      }
    }
  }

  TANDEM_DEVICE static void run(const Params& params) {
    const int warp = ptx::warp_index();
    const int row = ptx::lane_index() / 4;
    const int pair = ptx::lane_index() % 4;
    const uint32_t* const a_words = params.in + warp * kWarpWords;
    const uint32_t* const b_words = a_words + kAWords;
    const uint32_t* const c_words = b_words + kBWords;
    uint32_t a[4];
    uint32_t b[2];
    float d[4];
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      a[r] = ptx::load_global(a_words + (row + r % 2 * 8) * kRowWords + r / 2 * 4 + pair);
      d[r] = ptx::bits_to_float(ptx::load_global(c_words + (row + r / 2 * 8) * 8 + 2 * pair + r % 2));
    }
    TANDEM_UNROLL
    for (int r = 0; r < 2; ++r) b[r] = ptx::load_global(b_words + row * kRowWords + r * 4 + pair);
    ptx::mma_m16n8k16<Element>(d, a, b[0], b[1]);
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int element = (row + r / 2 * 8) * 8 + 2 * pair + r % 2;
      ptx::store_global(params.out + warp * kDWords + element, ptx::float_to_bits(d[r]));
    }
  }

  static void expect(const Words& in, Words& out) {
    for (int warp = 0; warp < kWarps; ++warp) {
      const uint32_t* const a = in.data() + warp * kWarpWords;
      const uint32_t* const b = a + kAWords;
      for (int i = 0; i < kDWords; ++i) {
        double sum = float_of(b[kBWords + i]);
        for (int k = 0; k < 16; ++k) {
          sum += element_at<Element>(a, i / 8 * 16 + k) * element_at<Element>(b, i % 8 * 16 + k);
        }
        out[warp * kDWords + i] = bits_of(static_cast<float>(sum));
      }
    }
  }
};

template <typename Element, Values kValues>
std::string case_name(MmaCase<Element, kValues>) {
  return std::string("mma_") + (std::is_same_v<Element, Bf16> ? "bf16" : "fp16") +
         (kValues == Values::kReals ? "_reals" : "");
}

// A (64, K) times B^T (16, K) by ldmatrix from swizzled tiles, as TMA would have left them; four warps of 16 rows each.
// Each ldmatrix_x4 of B^T is the B of two products.
template <Swizzle kSwizzleValue, int kRowBytesValue>
struct MmaOfTiles : CaseDefaults {
  using Element = Bf16;
  static constexpr Swizzle kSwizzle = kSwizzleValue;
  static constexpr const char* kName = kSwizzle == Swizzle::k64Bytes ? "mma_of_tiles_64" : "mma_of_tiles";
  static constexpr int kRowBytes = kRowBytesValue;
  static constexpr int kRowWords = kRowBytes / 4;
  static constexpr int kColumns = 16;
  using ATile = SwizzledTile<64, kRowBytes, kSwizzle>;
  using BTile = SwizzledTile<kColumns, kRowBytes, kSwizzle>;
  static constexpr int kInWords = (64 + kColumns) * kRowWords;
  static constexpr int kOutWords = 64 * kColumns;
  static constexpr Kind kKind = Kind::kFloats;
  static void input(Random& random, Words& in) { random_elements<Element>(random, in, Values::kIntegers); }

  template <typename Tile>
  TANDEM_DEVICE static void stage(uint32_t smem, const uint32_t* gmem) {
    for (int i = ptx::thread_rank(); i < Tile::kRows * kRowWords; i += kThreads) {
      const int byte = i % kRowWords * 4;
      const uint32_t offset = Tile::chunk_offset(i / kRowWords, byte) + static_cast<uint32_t>(byte % 16);
      ptx::store_shared(smem + offset, ptx::load_global(gmem + i));
    }
  }

  TANDEM_DEVICE static void run(const Params& params) {
    constexpr uint32_t kSmemA = ptx::kDynamicSharedBase;
    constexpr uint32_t kSmemB = kSmemA + ATile::kBytes;
    stage<ATile>(kSmemA, params.in);
    stage<BTile>(kSmemB, params.in + 64 * kRowWords);
    ptx::block_sync();
    const int lane = ptx::lane_index();
    const int a_row = 16 * ptx::warp_index() + lane % 16;
    for (int column = 0; column < kColumns; column += 8) {
      float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int byte = 0; byte < kRowBytes; byte += 64) {
        uint32_t a[4];
        uint32_t b[4];
        ptx::ldmatrix_x4(b, kSmemB + BTile::chunk_offset(column + lane % 8, byte + lane / 8 * 16));
        ptx::ldmatrix_x4(a, kSmemA + ATile::chunk_offset(a_row, byte + lane / 16 * 16));
        ptx::mma_m16n8k16<Element>(d, a, b[0], b[1]);
        ptx::ldmatrix_x4(a, kSmemA + ATile::chunk_offset(a_row, byte + 32 + lane / 16 * 16));
        ptx::mma_m16n8k16<Element>(d, a, b[2], b[3]);
      }
      TANDEM_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int row = 16 * ptx::warp_index() + lane / 4 + r / 2 * 8;
        ptx::store_global(params.out + row * kColumns + column + lane % 4 * 2 + r % 2, ptx::float_to_bits(d[r]));
      }
    }
  }
  static void expect(const Words& in, Words& out) {
    for (int i = 0; i < kOutWords; ++i) {
      double sum = 0;
      for (int k = 0; k < kRowBytes / 2; ++k) {
        sum += element_at<Element>(in.data(), i / kColumns * (kRowBytes / 2) + k) *
               element_at<Element>(in.data(), (64 + i % kColumns) * (kRowBytes / 2) + k);
      }
      out[i] = bits_of(static_cast<float>(sum));
    }
  }
};

}  // namespace tandem::sm90::wrappers
