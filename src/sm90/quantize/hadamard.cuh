#pragma once

#include <cstdint>

#include "core/fp8.h"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/quantize/chunks.cuh"
#include "sm90/quantize/rotary.cuh"
#include "sm90/quantize/scale.cuh"
#include "sm90/quantize/smem.h"

// y = H D x / sqrt(headdim) of the rows of a warp, as its threads hold them. A column's number in binary says where it
// lies: bits 0 to 2 in the chunk, those above in the lane, the highest in the chunk's number. Butterflies of the first
// and last kind stay in the thread, the others are exchanges in the warp.
//
// 96 and 192 are 12 times 8 and 16. There the chunk's bits (and at 192 the lane's lowest) are the Sylvester part; then
// the lanes of a row exchange, through shared memory, chunks for pairs of columns of all 12, which the thread sums up.
namespace tandem::sm90 {

constexpr int kTwelve = kHadamardBase;

// D / sqrt(headdim), so that sums stay as large as what they come to.
template <typename Traits>
TANDEM_DEVICE void write_factors(const QuantizeParams& params) {
  for (int column = ptx::thread_rank(); column < Traits::kHeadDim; column += Traits::kThreads) {
    const bool is_negative = (params.negative[column / 32] >> column % 32 & 1) != 0;
    ptx::store_shared(kTurnedFactors + static_cast<uint32_t>(column) * 4,
                      is_negative ? -params.rotation_factor : params.rotation_factor);
  }
  ptx::block_sync();
}

template <typename Traits, int kValues>
TANDEM_DEVICE void multiply_by_factors(float (&values)[kValues]) {
  TANDEM_UNROLL
  for (int v = 0; v < kValues / 4; ++v) {
    const int column = chunk_column<Traits>(v / 2) + v % 2 * 4;
    const auto factors = ptx::load_shared<FourFloats>(kTurnedFactors + static_cast<uint32_t>(column) * 4);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) values[4 * v + i] = values[4 * v + i] * factors.value[i];
  }
}

// Of values that lie kHalf apart.
template <int kHalf, int kValues>
TANDEM_DEVICE void butterflies(float (&values)[kValues]) {
  TANDEM_UNROLL
  for (int i = 0; i < kValues; ++i) {
    if ((i & kHalf) != 0) continue;
    const float a = values[i];
    const float b = values[i + kHalf];
    values[i] = a + b;
    values[i + kHalf] = a - b;
  }
}

// Of values of lanes `distance` apart; `thread` is the caller's.
template <int kValues>
TANDEM_DEVICE void lane_butterflies(int thread, int distance, float (&values)[kValues]) {
  const float sign = (thread & distance) != 0 ? -1.0f : 1.0f;
  TANDEM_UNROLL
  for (int i = 0; i < kValues; ++i) values[i] = ptx::shuffle_xor(values[i], distance) + sign * values[i];
}

// Column `column` of the warp's row `row` in the exchange. Rows begin at different banks.
template <typename Traits>
TANDEM_DEVICE uint32_t exchanged(int row, int column) {
  constexpr int kShift = Traits::kHeadDim / kTwelve;
  constexpr int kRowsOfWarp = ptx::kWarpThreads / Traits::kLanes;
  const int warp = ptx::thread_rank() / ptx::kWarpThreads;
  int place = column + kShift * row;
  if (place >= Traits::kHeadDim) place -= Traits::kHeadDim;
  const int element = (warp * kRowsOfWarp + row) * Traits::kHeadDim + place;
  return TurnedSmem<Traits>::kExchange + static_cast<uint32_t>(element) * 4;
}

struct alignas(8) TwoFloats {
  float value[2];
};

// From chunks to columns 2 l and 2 l + 1 of each of the 12: values[2 c] and values[2 c + 1].
template <typename Traits, int kValues>
TANDEM_DEVICE void exchange(float (&values)[kValues]) {
  constexpr int kSize = Traits::kHeadDim / kTwelve;
  const int row = ptx::lane_index() / Traits::kLanes;
  const int lane = ptx::lane_index() % Traits::kLanes;
  ptx::warp_sync();  // what was exchanged before has been read
  TANDEM_UNROLL
  for (int v = 0; v < kValues / 4; ++v) {
    ptx::store_shared(exchanged<Traits>(row, chunk_column<Traits>(v / 2) + v % 2 * 4),
                      FourFloats{values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3]});
  }
  ptx::warp_sync();
  TANDEM_UNROLL
  for (int c = 0; c < kTwelve; ++c) {
    const auto two = ptx::load_shared<TwoFloats>(exchanged<Traits>(row, c * kSize + 2 * lane));
    values[2 * c] = two.value[0];
    values[2 * c + 1] = two.value[1];
  }
}

// Paley's matrix of 12, of both columns.
TANDEM_DEVICE void sum_twelves(float (&values)[2 * kTwelve]) {
  float sums[2 * kTwelve];
  TANDEM_UNROLL
  for (int n = 0; n < 2 * kTwelve; ++n) {
    const int row = n / 2;
    sums[n] = paley12(row, 0) > 0 ? values[n % 2] : -values[n % 2];
    TANDEM_UNROLL
    for (int c = 1; c < kTwelve; ++c) {
      const float value = values[2 * c + n % 2];
      sums[n] = paley12(row, c) > 0 ? sums[n] + value : sums[n] - value;
    }
  }
  TANDEM_UNROLL
  for (int n = 0; n < 2 * kTwelve; ++n) values[n] = sums[n];
}

// All threads of the warp call. headdim: a power of two from 8 to that of the instance, or its own.
template <typename Traits, int kValues>
TANDEM_DEVICE void rotate_row(int headdim, float (&values)[kValues]) {
  const int thread = ptx::thread_rank_anew();  // signs are not to be kept from row to row
  multiply_by_factors<Traits>(values);
  butterflies<1>(values);
  butterflies<2>(values);
  butterflies<4>(values);
  if constexpr (Traits::kHeadDim % 3 == 0) {
    if constexpr (Traits::kHeadDim / kTwelve == 16) lane_butterflies(thread, 1, values);
    exchange<Traits>(values);
    sum_twelves(values);
  } else {
    TANDEM_UNROLL
    for (int distance = 1; distance < Traits::kLanes; distance *= 2) {
      if (8 * distance < headdim) lane_butterflies(thread, distance, values);
    }
    if (8 * Traits::kLanes < headdim) butterflies<8>(values);
  }
}

// Rounds what exchange() has left with the thread. Four lanes hold pairs of columns of the same 8; each takes 8 of
// every fourth of the 12, as bytes.
template <typename Traits, int kValues>
TANDEM_DEVICE void store_twelves(const QuantizeParams& params, const QuantizeItem& item, int row,
                                 const float (&values)[kValues], float inverse) {
  const int lane = ptx::lane_index() % Traits::kLanes;
  const bool odd = lane % 2 != 0;
  const bool upper = lane % 4 >= 2;
  TANDEM_UNROLL
  for (int m = 0; m < kTwelve / 4; ++m) {
    const float* const v = values + 8 * m;
    const uint32_t first = ptx::pack_e4m3x4(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse);
    const uint32_t second = ptx::pack_e4m3x4(v[4] * inverse, v[5] * inverse, v[6] * inverse, v[7] * inverse);
    // Halves of these words are pairs; now of two of the four 12ths, from lanes 2 apart.
    const uint32_t far = ptx::shuffle_xor(upper ? first : second, 2);
    const uint32_t low = upper ? far : first;
    const uint32_t high = upper ? second : far;
    const uint32_t sent = odd ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
    const uint32_t near = ptx::shuffle_xor(sent, 1);
    const RoundedChunk chunk =
        odd ? RoundedChunk{{(near & 0xffffu) | (low & 0xffff0000u), near >> 16 | (high & 0xffff0000u)}}
            : RoundedChunk{{(low & 0xffffu) | near << 16, (high & 0xffffu) | (near & 0xffff0000u)}};
    store_chunk(params, item, row, (4 * m + lane % 4) * (Traits::kHeadDim / kTwelve) + lane / 4 * 8, chunk);
  }
}

}  // namespace tandem::sm90
