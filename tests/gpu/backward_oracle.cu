#include "backward_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "backward_pair.cuh"
#include "pool_buffer.h"

namespace tandem::gpu_test {
namespace {

constexpr int kThreads = kOracleThreads;
constexpr int kChunk = 64;  // rows of a column's sum at a time
constexpr int kMaxHeadDim = 256;
constexpr double kSinkUnderflow = 1e-30;  // of exp(sink - LSE) in fp32, in many rows

struct Maxima {  // by raise_to()
  unsigned long long plain_error = 0, largest = 0, error = 0;
};

// The right values of one gradient: (rows or keys, columns), and which of those must be exactly 0.
struct Right {
  double* values;
  uint8_t* zero;
  Maxima* maxima;
};

struct SinkSums {  // (nheads_q)
  double* values;
  double* allowed;
};

__device__ void keep_maxima(Maxima* maxima, double plain_error, double largest) {
  plain_error = block_max(plain_error);
  largest = block_max(largest);
  if (threadIdx.x != 0) return;
  raise_to(&maxima->plain_error, plain_error);
  raise_to(&maxima->largest, largest);
}

// The row's largest P, equal ones counted once: what P is relative to when it is rounded. Where there are no more, or
// none that may be one, the last again.
__device__ void find_references(const double* p, int64_t keys, double (&references)[optest::kPlainReferences]) {
  for (int n = 0; n < optest::kPlainReferences; ++n) {
    double next = 0;
    for (int64_t j = threadIdx.x; j < keys; j += blockDim.x) {
      if (n == 0 || p[j] < references[n - 1]) next = fmax(next, p[j]);
    }
    next = block_max(next);
    references[n] = n == 0 || optest::may_be_reference(log(next), log(references[0])) ? next : references[n - 1];
  }
}

// The variants' O of a row, and of these delta. s, s_rounded: P of the scores and of the rounded ones.
__device__ void row_deltas(const DeviceView& view, const Unit& unit, const uint16_t* dout, double dlse, double* s,
                           double* s_rounded, RowStats& stats, double* out_size) {
  const int64_t keys = view.sequences[unit.sequence].k_len;
  double delta[kVariants] = {};
  double size = 0;
  double references[optest::kPlainReferences];
  find_references(s, keys, references);
  for (int64_t c = threadIdx.x; c < view.headdim_v; c += blockDim.x) {
    double out[kVariants] = {};
    for (int64_t j = 0; j < keys; ++j) {
      if (s[j] == 0 && s_rounded[j] == 0) continue;  // what no row sees may hold anything
      const double v = from_16bit(view.dtype, v_row(view, unit, j)[c]);
      out[kNothing] += s[j] * v;
      out[kScores] += s_rounded[j] * v;
      out[kProbabilities] += round_to_16bit(view.dtype, s[j]) * v;
      out[kAll] += round_to_16bit(view.dtype, s_rounded[j]) * v;
      for (int n = 0; n < optest::kPlainReferences; ++n) {
        out[kOutAndGradients + n] += round_to_16bit(view.dtype, s[j] / references[n]) * references[n] * v;
      }
    }
    out[kOut] = round_to_16bit(view.dtype, out[kNothing]);
    for (int n = kAll; n < kVariants; ++n) out[n] = round_to_16bit(view.dtype, out[n]);
    const double gradient = from_16bit(view.dtype, dout[c]);
    for (int n = 0; n < kVariants; ++n) delta[n] += gradient * out[n];
    size += fabs(gradient * out[kNothing]);
  }
  for (int n = 0; n < kVariants; ++n) stats.delta[n] = block_sum(delta[n]) - dlse;
  *out_size = block_sum(size) + fabs(dlse);
}

// A block works out rows of heads, one after the other: dQ, and what the columns need. scratch: two arrays of longest_k
// and kVariants more for each block.
constexpr int kRowArrays = 2 + kVariants;
__global__ void row_kernel(DeviceView view, Units units, double* scratch, RowStats* all_stats, Right dq,
                           SinkSums sinks) {
  double* const s = scratch + static_cast<int64_t>(blockIdx.x) * kRowArrays * view.longest_k;
  double* const s_rounded = s + view.longest_k;
  double* const ds = s_rounded + view.longest_k;  // (kVariants, longest_k)
  double plain_error = 0, largest = 0;
  for (int64_t n = blockIdx.x; n < units.rows; n += gridDim.x) {
    const Unit unit = units.list[unit_of(units, n, false)];
    const HeadRow at = head_row(view, unit, n - unit.first_row);
    const SequenceRange range = view.sequences[unit.sequence];
    const uint16_t* const q = q_row(view, unit.sequence, at);
    const uint16_t* const dout = dout_row(view, unit.sequence, at);
    double visible = 0;
    double largest_k = 0;
    for (int64_t j = threadIdx.x; j < range.k_len; j += blockDim.x) {
      s[j] = s_rounded[j] = -INFINITY;
      if (!sees(view, unit.sequence, at.head, at.row, j)) continue;
      const double score = view.scale * product_sum(q, k_row(view, unit, j), view.headdim, view.dtype);
      s[j] = capped(score, view.softcap);
      s_rounded[j] = capped(round_to_16bit(view.dtype, score), view.softcap);
      visible = 1;
    }
    visible = block_max(visible);
    const int64_t place =
        view.lse_index((view.packed ? 0 : unit.sequence) * view.q_at.rows + range.q_begin + at.row, at.head);
    const double sink = view.sink != nullptr ? static_cast<double>(view.sink[at.head]) : -INFINITY;
    RowStats stats = {};
    double out_size = 0;
    if (visible > 0) {
      stats.lse = softmax(s, range.k_len, sink);
      stats.lse_of_rounded = softmax(s_rounded, range.k_len, sink);
      // Plain attention keeps LSE in fp32, right to the last place.
      const float stored = static_cast<float>(stats.lse_of_rounded);
      stats.lse_stored = static_cast<double>(nextafterf(stored, -INFINITY));
      const float lse = static_cast<float>(stats.lse);
      for (int n = 0; n < optest::kPlainReferences; ++n) {
        stats.lse_near[n] = static_cast<double>(n == 1 ? lse : nextafterf(lse, n == 0 ? -INFINITY : INFINITY));
      }
      __syncthreads();
      row_deltas(view, unit, dout, view.dlse != nullptr ? view.dlse[place] : 0, s, s_rounded, stats, &out_size);
    } else {
      stats.lse = sink;
      stats.delta[kNothing] = view.dlse != nullptr && sink > -INFINITY ? -view.dlse[place] : 0;
      out_size = fabs(stats.delta[kNothing]);
    }
    __syncthreads();
    for (int64_t j = threadIdx.x; j < range.k_len; j += blockDim.x) {
      Pair pair = {};
      if (visible > 0 && sees(view, unit.sequence, at.head, at.row, j)) {
        const double dp = product_sum(dout, v_row(view, unit, j), view.headdim_v, view.dtype);
        pair = pair_of(view, stats, product_sum(q, k_row(view, unit, j), view.headdim, view.dtype), dp);
      }
      for (int v = 0; v < kVariants; ++v) ds[v * view.longest_k + j] = pair.ds[v];
      for (int c = 0; c < view.headdim && pair.p[kNothing] > 0; ++c) {
        largest_k = fmax(largest_k, fabs(static_cast<double>(from_16bit(view.dtype, k_row(view, unit, j)[c]))));
      }
    }
    stats.size = out_size;
    plain_error = fmax(plain_error, kCancellation * fabs(view.scale) * out_size * block_max(largest_k));
    __syncthreads();
    for (int64_t c = threadIdx.x; c < view.headdim; c += blockDim.x) {
      double sum[kVariants] = {};
      for (int64_t j = 0; j < range.k_len && visible > 0; ++j) {
        bool counts = false;
        for (int v = 0; v < kVariants; ++v) counts = counts || ds[v * view.longest_k + j] != 0;
        if (!counts) continue;  // what no row sees may hold anything
        const double k = from_16bit(view.dtype, k_row(view, unit, j)[c]);
        for (int v = 0; v < kVariants; ++v) sum[v] += ds[v * view.longest_k + j] * k;
      }
      dq.values[n * view.headdim + c] = sum[kNothing];
      largest = fmax(largest, fabs(sum[kNothing]));
      for (int v = 1; v < kVariants; ++v) plain_error = fmax(plain_error, fabs(sum[v] - sum[kNothing]));
    }
    if (threadIdx.x == 0) {
      dq.zero[n] = visible == 0;
      all_stats[n] = stats;
      if (sinks.values != nullptr) {
        const double p_sink = exp(sink - stats.lse);
        const double lse_unit = ldexp(1.0, ilogb(fmax(1.0, fabs(stats.lse))) - 23);
        atomicAdd(&sinks.values[at.head], -p_sink * stats.delta[kNothing]);
        atomicAdd(&sinks.allowed[at.head],
                  p_sink * out_size * ((view.dtype == TANDEM_BF16 ? 0x1p-7 : 0x1p-10) + 8 * lse_unit));
      }
    }
    __syncthreads();
  }
  keep_maxima(dq.maxima, plain_error, largest);
}

// A block works out keys, one after the other: dK and dV, from kChunk rows at a time.
__global__ void key_kernel(DeviceView view, Units units, const RowStats* all_stats, Right dk, Right dv) {
  __shared__ double sums[2][kVariants][kMaxHeadDim];  // of dK, of dV
  __shared__ double cancellation[kMaxHeadDim];
  __shared__ Pair pairs[kChunk];
  __shared__ uint8_t seen[kChunk];
  double dk_error = 0, dk_largest = 0, dv_error = 0, dv_largest = 0;
  for (int64_t n = blockIdx.x; n < units.keys; n += gridDim.x) {
    const Unit unit = units.list[unit_of(units, n, true)];
    const int64_t key = n - unit.first_key;
    const int64_t rows = view.sequences[unit.sequence].q_len * (view.nheads_q / view.nheads_k);
    const uint16_t* const k = k_row(view, unit, key);
    const uint16_t* const v = v_row(view, unit, key);
    double visible = 0;
    for (int c = threadIdx.x; c < kMaxHeadDim; c += blockDim.x) {
      cancellation[c] = 0;
      for (int n_variant = 0; n_variant < kVariants; ++n_variant) sums[0][n_variant][c] = sums[1][n_variant][c] = 0;
    }
    for (int64_t begin = 0; begin < rows; begin += kChunk) {
      const int count = static_cast<int>(rows - begin < kChunk ? rows - begin : kChunk);
      for (int r = threadIdx.x; r < count; r += blockDim.x) {
        const HeadRow at = head_row(view, unit, begin + r);
        seen[r] = sees(view, unit.sequence, at.head, at.row, key);
        if (!seen[r]) continue;
        visible = 1;
        const double product = product_sum(q_row(view, unit.sequence, at), k, view.headdim, view.dtype);
        const double dp = product_sum(dout_row(view, unit.sequence, at), v, view.headdim_v, view.dtype);
        pairs[r] = pair_of(view, all_stats[unit.first_row + begin + r], product, dp);
      }
      __syncthreads();
      for (int c = threadIdx.x; c < kMaxHeadDim; c += blockDim.x) {
        double of_k[kVariants] = {}, of_v[kVariants] = {};
        double cancelled = 0;
        for (int r = 0; r < count; ++r) {
          if (!seen[r]) continue;
          const HeadRow at = head_row(view, unit, begin + r);
          if (c < view.headdim) {
            const double q = from_16bit(view.dtype, q_row(view, unit.sequence, at)[c]);
            for (int m = 0; m < kVariants; ++m) of_k[m] += pairs[r].ds[m] * q;
            cancelled += pairs[r].p[kNothing] * all_stats[unit.first_row + begin + r].size * fabs(q);
          }
          if (c < view.headdim_v) {
            const double gradient = from_16bit(view.dtype, dout_row(view, unit.sequence, at)[c]);
            for (int m = 0; m < kVariants; ++m) of_v[m] += pairs[r].p[m] * gradient;
          }
        }
        cancellation[c] += kCancellation * fabs(view.scale) * cancelled;
        for (int m = 0; m < kVariants; ++m) sums[0][m][c] += of_k[m];
        for (int m = 0; m < kVariants; ++m) sums[1][m][c] += of_v[m];
      }
      __syncthreads();
    }
    visible = block_max(visible);
    if (threadIdx.x == 0) dk.zero[n] = dv.zero[n] = visible == 0;
    for (int c = threadIdx.x; c < kMaxHeadDim; c += blockDim.x) {
      if (c < view.headdim) dk.values[n * view.headdim + c] = sums[0][kNothing][c];
      if (c < view.headdim_v) dv.values[n * view.headdim_v + c] = sums[1][kNothing][c];
      dk_error = fmax(dk_error, cancellation[c]);
      dk_largest = fmax(dk_largest, fabs(sums[0][kNothing][c]));
      dv_largest = fmax(dv_largest, fabs(sums[1][kNothing][c]));
      for (int m = 1; m < kVariants; ++m) {
        dk_error = fmax(dk_error, fabs(sums[0][m][c] - sums[0][kNothing][c]));
        dv_error = fmax(dv_error, fabs(sums[1][m][c] - sums[1][kNothing][c]));
      }
    }
    __syncthreads();
  }
  keep_maxima(dk.maxima, dk_error, dk_largest);
  keep_maxima(dv.maxima, dv_error, dv_largest);
}

// One of dq, dk and dv.
struct Gradient {
  const uint16_t* data;
  Placement place;
  bool of_keys;
};

__device__ int64_t element_of(const DeviceView& view, const Units& units, const Gradient& gradient, int64_t n) {
  const Unit unit = units.list[unit_of(units, n, gradient.of_keys)];
  const SequenceRange range = view.sequences[unit.sequence];
  const int64_t entry = view.packed ? 0 : unit.sequence;
  if (gradient.of_keys) return gradient.place.at(entry, range.k_begin + n - unit.first_key, unit.head_k);
  const HeadRow at = head_row(view, unit, n - unit.first_row);
  return gradient.place.at(entry, range.q_begin + at.row, at.head);
}

// The first fault: row or key number * columns + column.
__global__ void compare_kernel(DeviceView view, Units units, Gradient gradient, Right right, double allowed,
                               unsigned long long* first_fault) {
  const int64_t columns = gradient.place.columns;
  const int64_t rows = gradient.of_keys ? units.keys : units.rows;
  double largest = 0;
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    const int64_t element = element_of(view, units, gradient, n);
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      const double error = fabs(from_16bit(view.dtype, gradient.data[element + c]) - right.values[n * columns + c]);
      largest = fmax(largest, error);
      if (error <= (right.zero[n] != 0 ? 0 : allowed)) continue;
      atomicMin(first_fault, static_cast<unsigned long long>(n * columns + c));
    }
  }
  largest = block_max(largest);
  if (threadIdx.x == 0) raise_to(&right.maxima->error, largest);
}

// Rows and keys that belong to no sequence: the first element that is not 0, as (entry's row number * heads + head).
__global__ void outside_kernel(DeviceView view, Gradient gradient, unsigned long long* first_fault) {
  const Placement& place = gradient.place;
  for (int64_t n = blockIdx.x; n < place.batch * place.rows * place.heads; n += gridDim.x) {
    const int64_t row = n / place.heads;
    if (place_of_row(view, row, gradient.of_keys).sequence >= 0) continue;
    const int64_t element = place.at(row / place.rows, row % place.rows, n % place.heads);
    for (int64_t c = threadIdx.x; c < place.columns; c += blockDim.x) {
      if ((gradient.data[element + c] & 0x7fff) != 0) atomicMin(first_fault, static_cast<unsigned long long>(n));
    }
  }
}

__global__ void element_kernel(DeviceView view, Units units, Gradient gradient, int64_t n, int64_t* element) {
  *element = element_of(view, units, gradient, n);
}

class Comparison {
 public:
  Comparison(const DeviceView& view, double most_products, uint64_t seed) : view_(view) {
    choose_units(most_products, seed);
    list_ = PoolBuffer(units_on_host_.size() * sizeof(Unit));
    list_.from_host(units_on_host_.data());
    units_.list = list_.as<Unit>();
  }

  std::string run(GradientErrors* errors) {
    if (units_.count > 0) compute();
    std::string found = compare("dQ", {view_.dq, view_.q_at, false}, dq_, errors ? &errors->dq : nullptr,
                                errors ? &errors->dq_allowed : nullptr);
    if (found.empty()) {
      found = compare("dK", {view_.dk, view_.k_at, true}, dk_, errors ? &errors->dk : nullptr,
                      errors ? &errors->dk_allowed : nullptr);
    }
    if (found.empty()) {
      found = compare("dV", {view_.dv, view_.v_at, true}, dv_, errors ? &errors->dv : nullptr,
                      errors ? &errors->dv_allowed : nullptr);
    }
    return found.empty() ? compare_dsink() : found;
  }

 private:
  struct Buffers {
    PoolBuffer values, zero, maxima;
    Buffers() = default;
    Buffers(int64_t count, int64_t columns)
        : values(static_cast<size_t>(count * columns) * sizeof(double)),
          zero(static_cast<size_t>(count)),
          maxima(sizeof(Maxima)) {
      maxima.fill(0);
    }
    Right right() const { return {values.as<double>(), zero.as<uint8_t>(), maxima.as<Maxima>()}; }
  };

  void choose_units(double most_products, uint64_t seed) {
    std::vector<SequenceRange> ranges(static_cast<size_t>(view_.batch));
    if (view_.batch > 0) {
      TANDEM_CHECK_CUDA(
          cudaMemcpy(ranges.data(), view_.sequences, ranges.size() * sizeof(SequenceRange), cudaMemcpyDeviceToHost));
    }
    const int64_t group = view_.nheads_k > 0 ? view_.nheads_q / view_.nheads_k : 0;
    double products = 0;
    for (const SequenceRange& range : ranges) {
      products += static_cast<double>(range.q_len) * static_cast<double>(range.k_len) *
                  static_cast<double>(view_.nheads_q * (view_.headdim + view_.headdim_v));
    }
    const int64_t all = view_.batch * view_.nheads_k;
    int64_t step = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(products / most_products)));
    if (step > 1) step |= 1;  // odd: even numbers of heads are all met
    for (int64_t n = 0; n < all; ++n) {
      if (n % step != static_cast<int64_t>(seed % static_cast<uint64_t>(step)) && n + 1 != all) continue;
      const SequenceRange& range = ranges[static_cast<size_t>(n / view_.nheads_k)];
      if (range.q_len <= 0 && range.k_len <= 0) continue;
      units_on_host_.push_back({n / view_.nheads_k, n % view_.nheads_k, units_.rows, units_.keys});
      units_.rows += std::max<int64_t>(range.q_len, 0) * group;
      units_.keys += std::max<int64_t>(range.k_len, 0);
    }
    units_.count = static_cast<int64_t>(units_on_host_.size());
    complete_ = step == 1;
  }

  void compute() {
    dq_ = Buffers(units_.rows, view_.headdim);
    dk_ = Buffers(units_.keys, view_.headdim);
    dv_ = Buffers(units_.keys, view_.headdim_v);
    const PoolBuffer stats(static_cast<size_t>(units_.rows) * sizeof(RowStats));
    SinkSums sinks = {};
    if (view_.sink != nullptr && complete_) {
      sink_sums_ = PoolBuffer(static_cast<size_t>(view_.nheads_q) * 2 * sizeof(double));
      sink_sums_.fill(0);
      sinks = {sink_sums_.as<double>(), sink_sums_.as<double>() + view_.nheads_q};
    }
    // A gigabyte of scratch memory at most.
    const int64_t bytes_of_block = std::max<int64_t>(view_.longest_k, 1) * kRowArrays * 8;
    const int64_t most_blocks = std::max<int64_t>(1, (int64_t{1} << 30) / bytes_of_block);
    const auto blocks = std::min<int64_t>({units_.rows, most_blocks, kOracleBlocks});
    if (units_.rows > 0) {
      const PoolBuffer scratch(static_cast<size_t>(blocks * bytes_of_block));
      row_kernel<<<static_cast<unsigned int>(blocks), kThreads>>>(view_, units_, scratch.as<double>(),
                                                                  stats.as<RowStats>(), dq_.right(), sinks);
      TANDEM_CHECK_CUDA(cudaGetLastError());
    }
    key_kernel<<<kOracleBlocks, kThreads>>>(view_, units_, stats.as<RowStats>(), dk_.right(), dv_.right());
    TANDEM_CHECK_CUDA(cudaGetLastError());
  }

  std::string compare(const char* name, const Gradient& gradient, const Buffers& buffers, double* error,
                      double* allowed_error) const {
    const PoolBuffer first_fault(2 * sizeof(unsigned long long));
    first_fault.fill(0xff);
    auto* const faults = first_fault.as<unsigned long long>();
    outside_kernel<<<kOracleBlocks, kThreads>>>(view_, gradient, faults + 1);
    TANDEM_CHECK_CUDA(cudaGetLastError());
    double allowed = 0;
    if (units_.count > 0) {
      const Maxima plain = device_value(buffers.right().maxima);
      allowed = 2 * double_of(plain.plain_error) + 2 * ulp_of(view_.dtype, double_of(plain.largest));
      compare_kernel<<<kOracleBlocks, kThreads>>>(view_, units_, gradient, buffers.right(), allowed, faults);
      TANDEM_CHECK_CUDA(cudaGetLastError());
      if (error != nullptr) *error = double_of(device_value(buffers.right().maxima).error);
      if (allowed_error != nullptr) *allowed_error = allowed;
    }
    if (const auto fault = device_value(faults); fault != ~0ull) {
      return describe_fault(name, gradient, buffers, static_cast<int64_t>(fault), allowed);
    }
    if (const auto fault = device_value(faults + 1); fault != ~0ull) {
      return std::string(name) + " of row " + std::to_string(fault / static_cast<uint64_t>(gradient.place.heads)) +
             ", head " + std::to_string(fault % static_cast<uint64_t>(gradient.place.heads)) +
             ", which belongs to no sequence, is not 0";
    }
    return "";
  }

  std::string describe_fault(const char* name, const Gradient& gradient, const Buffers& buffers, int64_t fault,
                             double allowed) const {
    const int64_t columns = gradient.place.columns;
    const int64_t n = fault / columns;
    const auto begins_at_or_before = [&](const Unit& unit) {
      return (gradient.of_keys ? unit.first_key : unit.first_row) <= n;
    };
    const auto next = std::partition_point(units_on_host_.begin(), units_on_host_.end(), begins_at_or_before);
    const Unit& unit = *(next - 1);
    const PoolBuffer element(sizeof(int64_t));
    element_kernel<<<1, 1>>>(view_, units_, gradient, n, element.as<int64_t>());
    TANDEM_CHECK_CUDA(cudaGetLastError());
    const int64_t at = device_value(element.as<int64_t>()) + fault % columns;
    const double got = from_16bit(view_.dtype, device_value(gradient.data + at));
    const bool zero = device_value(buffers.right().zero + n) != 0;
    char text[320];
    std::snprintf(text, sizeof text,
                  "%s of sequence %lld, key head %lld, %s %lld, column %lld is %.9g, the oracle says %.9g%s; allowed "
                  "error %.3g",
                  name, static_cast<long long>(unit.sequence), static_cast<long long>(unit.head_k),
                  gradient.of_keys ? "key" : "row of the group",
                  static_cast<long long>(n - (gradient.of_keys ? unit.first_key : unit.first_row)),
                  static_cast<long long>(fault % columns), got, device_value(buffers.right().values + fault),
                  zero ? ", exactly" : "", zero ? 0.0 : allowed);
    return text;
  }

  std::string compare_dsink() const {
    for (int64_t h = 0; h < view_.nheads_q && sink_sums_.bytes() > 0; ++h) {
      const double right = device_value(sink_sums_.as<double>() + h);
      const double allowed = device_value(sink_sums_.as<double>() + view_.nheads_q + h);
      const double got = device_value(view_.dsink + h);
      if (std::fabs(got - right) <= allowed + kSinkUnderflow) continue;
      char text[200];
      std::snprintf(text, sizeof text, "dsink of head %lld is %.9g, the oracle says %.9g; allowed error %.3g",
                    static_cast<long long>(h), got, right, allowed);
      return text;
    }
    return "";
  }

  DeviceView view_;
  std::vector<Unit> units_on_host_;
  Units units_ = {};
  bool complete_ = true;
  PoolBuffer list_, sink_sums_;
  Buffers dq_, dk_, dv_;
};

}  // namespace

std::string compare_gradients(const DeviceView& view, double most_products, uint64_t seed, GradientErrors* errors) {
  return Comparison(view, most_products, seed).run(errors);
}

}  // namespace tandem::gpu_test
