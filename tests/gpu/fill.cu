#include "fill.h"

#include <cmath>

#include "cuda_check.h"
#include "fill_math.cuh"
#include "pool_buffer.h"

namespace tandem::gpu_test {
namespace {

enum class Role : int { kQ, kK, kV };

// e4m3 has no number beyond 448: what would be is brought down to it.
__device__ double within_range(int32_t dtype, double value) {
  if (dtype != TANDEM_E4M3 || !(fabs(value) < INFINITY)) return value;
  return fmin(fmax(value, -448.0), 448.0);
}

// Of Q's column 0 where scores get something on top.
__device__ double score_query(const DeviceView& view) {
  return view.dtype == TANDEM_E4M3 ? 16 : 1;
}

// What the scores get on top, by the key: K's column 0 holds this over the scale and score_query().
__device__ double key_score(const Fill& fill, int64_t j, int64_t keys) {
  const double place = static_cast<double>(j) / static_cast<double>(keys);
  switch (fill.pattern) {
    case Pattern::kRampUp: return 300 * place;
    case Pattern::kRampDown: return 300 * (1 - place);
    case Pattern::kSpikes:
      return (place < 0.33   ? 330
              : place < 0.67 ? 160
                             : 0) +
             (hash_of(fill.seed, static_cast<uint64_t>(j)) % 61 == 0 ? 90 : 0);
    default: return 0;
  }
}

__device__ double input_value(const DeviceView& view, const Fill& fill, Role role, int64_t sequence, int64_t position,
                              int64_t column, uint64_t element) {
  const double value = normal(fill.seed * 3 + static_cast<uint64_t>(role), element);
  if (role == Role::kV) return value + 0.5;
  if (fill.pattern == Pattern::kPeaked) return role == Role::kQ ? 12 * value : value;
  if (fill.pattern == Pattern::kHuge) return 150 * value;
  if (fill.pattern == Pattern::kNormal || column > 0) return value;
  if (role == Role::kQ) return score_query(view);
  const double scale = fabs(view.scale) < 1e-3 ? 1 : view.scale;
  const double score = key_score(fill, position, view.sequences[sequence].k_len);
  return fmin(fmax(score / (scale * score_query(view)), -60000.0), 60000.0);
}

// seen: for each row of keys and key head, does any row see it?
__global__ void seen_kernel(DeviceView view, uint8_t* seen) {
  const int64_t group = view.nheads_q / view.nheads_k;
  for (int64_t n = first_index(); n < view.rows_k() * view.nheads_k; n += index_step()) {
    const RowPlace place = place_of_row(view, n / view.nheads_k, true);
    bool found = false;
    if (place.sequence >= 0) {
      const int64_t q_len = view.sequences[place.sequence].q_len;
      for (int64_t h = n % view.nheads_k * group; h < (n % view.nheads_k + 1) * group && !found; ++h) {
        for (int64_t i = q_len - 1; i >= 0 && !found; --i) found = sees(view, place.sequence, h, i, place.position);
      }
    }
    seen[n] = found;
  }
}

__global__ void fill_kernel(DeviceView view, Fill fill, Role role, const uint8_t* seen) {
  const bool of_keys = role != Role::kQ;
  const Placement& place = role == Role::kQ ? view.q_at : role == Role::kK ? view.k_at : view.v_at;
  void* const buffer = role == Role::kQ ? view.q : role == Role::kK ? view.k : view.v;
  const double poison = fill.infinite_poison ? INFINITY : NAN;
  for (int64_t element = first_index(); element < place.elements; element += index_step()) {
    const Coordinates at = locate(place, element);
    double value = poison;
    if (at.batch >= 0) {
      const int64_t row = at.batch * place.rows + at.row;
      const RowPlace owner = place_of_row(view, row, of_keys);
      if (owner.sequence >= 0 && (!of_keys || seen[row * view.nheads_k + at.head])) {
        value =
            input_value(view, fill, role, owner.sequence, owner.position, at.column, static_cast<uint64_t>(element));
        const bool wild = of_keys ? fill.wild == Wild::kSequences && owner.sequence % 2 == 1
                                  : is_wild(fill, owner.sequence, at.head, owner.position);
        if (wild) value = wild_value(fill.seed, static_cast<uint64_t>(row * 64 + at.head), value);
      }
    }
    set_input_element(view.dtype, buffer, element, round_to_input(view.dtype, within_range(view.dtype, value)));
  }
}

template <typename Bits>
__global__ void guard_kernel(Placement place, const Bits* buffer, unsigned long long* changed) {
  for (int64_t element = first_index(); element < place.elements; element += index_step()) {
    if (locate(place, element).batch < 0 && buffer[element] != static_cast<Bits>(~Bits{0})) atomicAdd(changed, 1ull);
  }
}

template <typename Bits>
__device__ bool same_row(const DeviceView& view, const DeviceView& other, int64_t row, int64_t head) {
  const Bits* a = static_cast<const Bits*>(view.out) + view.out_at.at(row / view.q_at.rows, row % view.q_at.rows, head);
  const Bits* b =
      static_cast<const Bits*>(other.out) + other.out_at.at(row / other.q_at.rows, row % other.q_at.rows, head);
  for (int64_t c = 0; c < view.headdim_v; ++c) {
    if (a[c] != b[c]) return false;
  }
  return true;
}

__global__ void difference_kernel(DeviceView view, DeviceView other, Fill fill, unsigned long long* different) {
  for (int64_t n = first_index(); n < view.rows_q() * view.nheads_q; n += index_step()) {
    const int64_t row = n / view.nheads_q;
    const int64_t head = n % view.nheads_q;
    const RowPlace place = place_of_row(view, row, false);
    if (place.sequence >= 0 && is_wild(fill, place.sequence, head, place.position)) continue;
    bool same = view.out_dtype == TANDEM_FP32 ? same_row<uint32_t>(view, other, row, head)
                                              : same_row<uint16_t>(view, other, row, head);
    if (view.lse != nullptr) {
      const int64_t at = view.lse_index(row, head);
      same = same && float_to_bits(view.lse[at]) == float_to_bits(other.lse[at]);
    }
    if (!same) atomicAdd(different, 1ull);
  }
}

int64_t counted(const PoolBuffer& counter) {
  unsigned long long count = 0;
  TANDEM_CHECK_CUDA(cudaGetLastError());
  counter.to_host(&count);
  return static_cast<int64_t>(count);
}

}  // namespace

namespace {

// Place of key `key` of a sequence among the slots of V^T, as tandem.h has it.
__device__ int64_t slot_of(int64_t key) {
  const int64_t in_group = key % 16;
  return key - in_group + 4 * (in_group % 8 / 2) + 2 * (in_group / 8) + in_group % 2;
}

__global__ void transpose_kernel(DeviceView view, uint8_t* out, int64_t slots) {
  const Placement& place = view.v_at;
  for (int64_t element = first_index(); element < place.elements; element += index_step()) {
    const Coordinates at = locate(place, element);
    if (at.batch < 0) continue;
    const RowPlace owner = place_of_row(view, at.batch * place.rows + at.row, true);
    if (owner.sequence < 0) continue;
    const int64_t begin = view.sequences[owner.sequence].k_begin;
    const int64_t first = view.packed ? 16 * (begin / 16 + owner.sequence) : 0;
    const int64_t line = (at.batch * view.nheads_k + at.head) * view.headdim_v + at.column;
    out[line * slots + first + slot_of(owner.position)] = static_cast<const uint8_t*>(view.v)[element];
  }
}

}  // namespace

void transpose_v(const DeviceView& view, uint8_t* out, int64_t slots) {
  transpose_kernel<<<kFillBlocks, kFillThreads>>>(view, out, slots);
  TANDEM_CHECK_CUDA(cudaGetLastError());
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

void fill_inputs(const DeviceView& view, const Fill& fill) {
  const PoolBuffer seen(static_cast<size_t>(view.rows_k() * view.nheads_k));
  seen_kernel<<<kFillBlocks, kFillThreads>>>(view, seen.as<uint8_t>());
  fill_kernel<<<kFillBlocks, kFillThreads>>>(view, fill, Role::kQ, seen.as<uint8_t>());
  fill_kernel<<<kFillBlocks, kFillThreads>>>(view, fill, Role::kK, seen.as<uint8_t>());
  fill_kernel<<<kFillBlocks, kFillThreads>>>(view, fill, Role::kV, seen.as<uint8_t>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

int64_t count_changed_guards(const Placement& place, const void* buffer, int element_bytes) {
  const PoolBuffer counter(sizeof(unsigned long long));
  counter.fill(0);
  auto* count = counter.as<unsigned long long>();
  if (element_bytes == 4) {
    guard_kernel<<<kFillBlocks, kFillThreads>>>(place, static_cast<const uint32_t*>(buffer), count);
  } else {
    guard_kernel<<<kFillBlocks, kFillThreads>>>(place, static_cast<const uint16_t*>(buffer), count);
  }
  return counted(counter);
}

int64_t count_different_rows(const DeviceView& view, const DeviceView& other, const Fill& fill) {
  const PoolBuffer counter(sizeof(unsigned long long));
  counter.fill(0);
  difference_kernel<<<kFillBlocks, kFillThreads>>>(view, other, fill, counter.as<unsigned long long>());
  return counted(counter);
}

}  // namespace tandem::gpu_test
