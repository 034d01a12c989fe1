#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/mma.cuh"
#include "sm90/tile/fragment.cuh"

namespace tandem::sm90 {

// Scores of one warp's 16 rows, from the Q of its warpgroup and a stage of K in shared memory, without the other warps
// of the warpgroup. Slow: for what is rarely needed.
template <typename Traits>
class WarpScores {
 public:
  TANDEM_DEVICE WarpScores(int q_place, int k_stage)
      : thread_(fragment_thread()),
        q_(Traits::kSmemQ + static_cast<uint32_t>(q_place) * Traits::kQPlaceBytes),
        k_(Traits::kSmemK + static_cast<uint32_t>(k_stage) * KTile::kBytes) {}

  // Columns column .. column + 7, laid out as the same columns of the warpgroup's accumulator are.
  TANDEM_DEVICE void compute(float (&s)[4], int column) const {
    const int lane = thread_.lane;
    const int q_row = 16 * thread_.warp + lane % 16;     // ldmatrix: matrices 0, 1 are rows 0-7, 8-15; 2, 3 the
    const int q_byte = lane / 16 * 16;                   // next 8 columns of them
    const int k_row = column + lane % 8;                 // matrices: 16 bytes each of the same keys, those of one
    const int k_byte = lane / 8 % (2 * kProducts) * 16;  // product and then the other
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) s[i] = 0.0f;
    TANDEM_NO_UNROLL
    for (int byte = 0; byte < QTile::kRowBytes; byte += 32 * kProducts) {
      uint32_t q[kProducts][4];
      uint32_t k[4];
      TANDEM_UNROLL
      for (int i = 0; i < kProducts; ++i) {
        ptx::ldmatrix_x4(q[i], q_ + QTile::chunk_offset(q_row, byte + 32 * i + q_byte));
      }
      ptx::ldmatrix_x4(k, k_ + KTile::chunk_offset(k_row, byte + k_byte));
      TANDEM_UNROLL
      for (int i = 0; i < kProducts; ++i) add_product(s, q[i], k[2 * i], k[2 * i + 1]);
    }
  }

 private:
  // 32 bytes of each row. e4m3 goes as fp16, which holds it exactly: elements 4i and 4i + 1 of the row, then 4i + 2 and
  // 4i + 3, of Q and K alike.
  TANDEM_DEVICE static void add_product(float (&s)[4], const uint32_t (&q)[4], uint32_t k0, uint32_t k1) {
    if constexpr (Traits::kFp8) {
      uint32_t first[4], second[4], keys_first[2], keys_second[2];
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) ptx::unpack_e4m3x4(first[i], second[i], q[i]);
      ptx::unpack_e4m3x4(keys_first[0], keys_second[0], k0);
      ptx::unpack_e4m3x4(keys_first[1], keys_second[1], k1);
      ptx::mma_m16n8k16<Fp16>(s, first, keys_first[0], keys_first[1]);
      ptx::mma_m16n8k16<Fp16>(s, second, keys_second[0], keys_second[1]);
    } else {
      ptx::mma_m16n8k16<typename Traits::Element>(s, q, k0, k1);
    }
  }

  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;
  // In one pass of a loop. If one pass were all, there would be no loop, and ptxas would mix up the columns, for which
  // it takes many registers.
  static constexpr int kProducts = QTile::kRowBytes > 64 ? 2 : 1;

  FragmentThread thread_;
  uint32_t q_;
  uint32_t k_;
};

}  // namespace tandem::sm90
