#include "backward_fill.h"

#include <cmath>

#include "cuda_check.h"
#include "fill_math.cuh"
#include "pool_buffer.h"

namespace tandem::gpu_test {
namespace {

constexpr uint64_t kSeedOfDout = 1000003, kSeedOfDlse = 2000003;

__device__ bool sees_any(const DeviceView& view, int64_t sequence, int64_t head, int64_t row) {
  for (int64_t j = 0; j < view.sequences[sequence].k_len; ++j) {
    if (sees(view, sequence, head, row, j)) return true;
  }
  return false;
}

// live: for each row of heads, does it see a key? (Rows that belong to no sequence do not.)
__global__ void live_kernel(DeviceView view, uint8_t* live) {
  for (int64_t n = first_index(); n < view.rows_q() * view.nheads_q; n += index_step()) {
    const RowPlace place = place_of_row(view, n / view.nheads_q, false);
    live[n] = place.sequence >= 0 && sees_any(view, place.sequence, n % view.nheads_q, place.position);
  }
}

__global__ void dout_kernel(DeviceView view, Fill fill, const uint8_t* live) {
  const double poison = fill.infinite_poison ? INFINITY : NAN;
  for (int64_t element = first_index(); element < view.out_at.elements; element += index_step()) {
    const Coordinates at = locate(view.out_at, element);
    double value = poison;
    if (at.batch >= 0) {
      const int64_t row = at.batch * view.out_at.rows + at.row;
      const RowPlace owner = place_of_row(view, row, false);
      const bool counts = view.sink != nullptr || live[row * view.nheads_q + at.head] != 0;
      if (owner.sequence >= 0 && counts) {
        value = normal(fill.seed + kSeedOfDout, static_cast<uint64_t>(element));
        if (fill.wild == Wild::kSequences && owner.sequence % 2 == 1) {
          value = wild_value(fill.seed, static_cast<uint64_t>(row * 64 + at.head), value);
        }
      }
    }
    view.dout[element] = to_16bit(view.dtype, round_to_16bit(view.dtype, value));
  }
}

__global__ void dlse_kernel(DeviceView view, Fill fill, const uint8_t* live) {
  for (int64_t n = first_index(); n < view.rows_q() * view.nheads_q; n += index_step()) {
    const int64_t row = n / view.nheads_q;
    const int64_t head = n % view.nheads_q;
    const bool finite = live[n] != 0 || (view.sink != nullptr && place_of_row(view, row, false).sequence >= 0);
    const int64_t at = view.lse_index(row, head);
    view.dlse[at] = finite ? normal(fill.seed + kSeedOfDlse, static_cast<uint64_t>(at))
                           : bits_to_float(fill.infinite_poison ? 0x7f800000 : 0x7fffffff);
  }
}

__global__ void outside_kernel(DeviceView view) {
  for (int64_t n = first_index(); n < view.rows_q() * view.nheads_q; n += index_step()) {
    const int64_t row = n / view.nheads_q;
    const int64_t head = n % view.nheads_q;
    if (place_of_row(view, row, false).sequence >= 0) continue;
    view.lse[view.lse_index(row, head)] = bits_to_float(0x7fffffff);
    uint16_t* const out =
        static_cast<uint16_t*>(view.out) + view.out_at.at(row / view.q_at.rows, row % view.q_at.rows, head);
    for (int64_t c = 0; c < view.headdim_v; ++c) out[c] = 0x7fff;
  }
}

__device__ bool same_row(const uint16_t* a, const uint16_t* b, const Placement& place, int64_t entry, int64_t row,
                         int64_t head) {
  const int64_t begin = place.at(entry, row, head);
  for (int64_t c = 0; c < place.columns; ++c) {
    if (a[begin + c] != b[begin + c]) return false;
  }
  return true;
}

__global__ void difference_kernel(DeviceView view, DeviceView other, Fill fill, unsigned long long* different) {
  const auto is_wild_sequence = [&](int64_t row, bool of_keys) {
    const RowPlace place = place_of_row(view, row, of_keys);
    return fill.wild == Wild::kSequences && place.sequence >= 0 && place.sequence % 2 == 1;
  };
  for (int64_t n = first_index(); n < view.rows_q() * view.nheads_q; n += index_step()) {
    const int64_t row = n / view.nheads_q;
    if (is_wild_sequence(row, false)) continue;
    const int64_t entry = row / view.q_at.rows;
    if (!same_row(view.dq, other.dq, view.q_at, entry, row % view.q_at.rows, n % view.nheads_q)) {
      atomicAdd(different, 1ull);
    }
  }
  for (int64_t n = first_index(); n < view.rows_k() * view.nheads_k; n += index_step()) {
    const int64_t row = n / view.nheads_k;
    if (is_wild_sequence(row, true)) continue;
    const int64_t entry = row / view.k_at.rows;
    if (!same_row(view.dk, other.dk, view.k_at, entry, row % view.k_at.rows, n % view.nheads_k) ||
        !same_row(view.dv, other.dv, view.v_at, entry, row % view.v_at.rows, n % view.nheads_k)) {
      atomicAdd(different, 1ull);
    }
  }
  for (int64_t h = first_index(); view.dsink != nullptr && h < view.nheads_q; h += index_step()) {
    if (fill.wild == Wild::kNothing && float_to_bits(view.dsink[h]) != float_to_bits(other.dsink[h])) {
      atomicAdd(different, 1ull);
    }
  }
}

}  // namespace

void fill_gradient_inputs(const DeviceView& view, const Fill& fill) {
  const PoolBuffer live(static_cast<size_t>(view.rows_q() * view.nheads_q));
  live_kernel<<<kFillBlocks, kFillThreads>>>(view, live.as<uint8_t>());
  dout_kernel<<<kFillBlocks, kFillThreads>>>(view, fill, live.as<uint8_t>());
  if (view.dlse != nullptr) dlse_kernel<<<kFillBlocks, kFillThreads>>>(view, fill, live.as<uint8_t>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

void poison_outside_results(const DeviceView& view) {
  outside_kernel<<<kFillBlocks, kFillThreads>>>(view);
  TANDEM_CHECK_CUDA(cudaGetLastError());
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

int64_t count_different_gradients(const DeviceView& view, const DeviceView& other, const Fill& fill) {
  const PoolBuffer counter(sizeof(unsigned long long));
  counter.fill(0);
  difference_kernel<<<kFillBlocks, kFillThreads>>>(view, other, fill, counter.as<unsigned long long>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  unsigned long long count = 0;
  counter.to_host(&count);
  return static_cast<int64_t>(count);
}

}  // namespace tandem::gpu_test
