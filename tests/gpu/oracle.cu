#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "device_floats.cuh"
#include "oracle_math.cuh"
#include "pool_buffer.h"

namespace tandem::gpu_test {
namespace {

constexpr int kScoreArrays = 4;

// Which rows are compared: numbers n = 0, 1, ... stand for rows of heads, counted from the last one back by `step`.
struct Sample {
  int64_t count = 0;
  int64_t step = 1;
};

struct RowOfHead {
  int64_t row, head;  // row: of rows_q()
};

__host__ __device__ RowOfHead row_of_head(const DeviceView& view, const Sample& sample, int64_t n) {
  const int64_t number = view.rows_q() * view.nheads_q - 1 - n * sample.step;
  return {number / view.nheads_q, number % view.nheads_q};
}

// The right values of a sample, row by row.
struct Right {
  double* out;        // (count, headdim_v)
  double* lse;        // (count)
  uint8_t* empty;     // (count): it sees no key, and is exact
  double* lse_error;  // (count): allowed
};

// Of a sum in fp32, by the magnitudes of its terms: a few units in the last place of the partial sums.
constexpr double kSumError = 2.4e-7;

struct Maxima {  // by raise_to()
  unsigned long long plain_error = 0;
  unsigned long long largest = 0;
  unsigned long long plain_lse_error = 0;  // e4m3
};

__device__ void raise_maxima(Maxima* maxima, double plain_error, double largest, double plain_lse_error) {
  plain_error = block_max(plain_error);
  largest = block_max(largest);
  plain_lse_error = block_max(plain_lse_error);
  if (threadIdx.x != 0) return;
  raise_to(&maxima->plain_error, plain_error);
  raise_to(&maxima->largest, largest);
  raise_to(&maxima->plain_lse_error, plain_lse_error);
}

// Of a row that belongs to no sequence.
__device__ void write_empty_row(const DeviceView& view, const Right& want, int64_t n) {
  for (int64_t c = threadIdx.x; c < view.headdim_v; c += blockDim.x) want.out[n * view.headdim_v + c] = 0;
  if (threadIdx.x == 0) want.lse[n] = -INFINITY;
  if (threadIdx.x == 0) want.empty[n] = 1;
}

__device__ void write_lse(const Right& want, int64_t n, bool visible, double row_lse, double sink, double size) {
  want.lse[n] = visible ? row_lse : sink;
  want.empty[n] = !visible;
  want.lse_error[n] = fmax(1e-5 * fmax(1.0, fabs(want.lse[n])), kSumError * size);
}

__device__ double round_to_out(int32_t dtype, double value) {
  return dtype == TANDEM_FP32 ? static_cast<double>(static_cast<float>(value)) : round_to_16bit(dtype, value);
}

// A block works out rows of heads, one after the other. scores: kScoreArrays arrays of longest_k for each block.
__global__ void oracle_kernel(DeviceView view, Sample sample, double* all_scores, Right want, Maxima* maxima) {
  double* const s = all_scores + static_cast<int64_t>(blockIdx.x) * kScoreArrays * view.longest_k;  // P from S
  double* const s_rounded = s + view.longest_k;                                                     // P from rounded S
  double* const p_rounded = s_rounded + view.longest_k;  // P of each, rounded
  double* const all_rounded = p_rounded + view.longest_k;
  double plain_error = 0;
  double largest = 0;
  for (int64_t n = blockIdx.x; n < sample.count; n += gridDim.x) {
    const RowOfHead which = row_of_head(view, sample, n);
    const RowPlace place = place_of_row(view, which.row, false);
    double* const row_out = want.out + n * view.headdim_v;
    if (place.sequence < 0) {
      write_empty_row(view, want, n);
      continue;
    }
    const SequenceRange range = view.sequences[place.sequence];
    const int64_t entry = view.packed ? 0 : place.sequence;
    const int64_t head_k = which.head / (view.nheads_q / view.nheads_k);
    const uint16_t* q = static_cast<const uint16_t*>(view.q) +
                        view.q_at.at(entry, view.packed ? which.row : place.position, which.head);
    double visible = 0;
    double size = 0;
    for (int64_t j = threadIdx.x; j < range.k_len; j += blockDim.x) {
      s[j] = s_rounded[j] = -INFINITY;
      if (!sees(view, place.sequence, which.head, place.position, j)) continue;
      const uint16_t* k = static_cast<const uint16_t*>(view.k) + view.k_at.at(entry, range.k_begin + j, head_k);
      const Dot product = dot(q, k, view.headdim, view.dtype);
      const double score = view.scale * product.sum;
      size = fmax(size, fabs(view.scale) * product.size);
      s[j] = capped(score, view.softcap);
      s_rounded[j] = capped(round_to_16bit(view.dtype, score), view.softcap);
      visible = 1;
    }
    visible = block_max(visible);
    size = block_max(size);
    const double sink = view.sink != nullptr ? static_cast<double>(view.sink[which.head]) : -INFINITY;
    const double row_lse = softmax(s, range.k_len, sink);
    softmax(s_rounded, range.k_len, sink);
    for (int64_t j = threadIdx.x; j < range.k_len; j += blockDim.x) {
      p_rounded[j] = round_to_16bit(view.dtype, s[j]);
      all_rounded[j] = round_to_16bit(view.dtype, s_rounded[j]);
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < view.headdim_v; c += blockDim.x) {
      double exact = 0, from_rounded_s = 0, from_rounded_p = 0, from_both = 0;
      for (int64_t j = 0; j < range.k_len; ++j) {
        if (s[j] == 0 && s_rounded[j] == 0) continue;  // what no row sees may hold anything
        const double v = input_element(view.dtype, view.v, view.v_at.at(entry, range.k_begin + j, head_k) + c);
        exact += s[j] * v;
        from_rounded_s += s_rounded[j] * v;
        from_rounded_p += p_rounded[j] * v;
        from_both += all_rounded[j] * v;
      }
      row_out[c] = exact;
      largest = fmax(largest, fabs(exact));
      plain_error = fmax(plain_error, fabs(from_rounded_s - exact));
      plain_error = fmax(plain_error, fabs(from_rounded_p - exact));
      plain_error = fmax(plain_error, fabs(round_to_16bit(view.dtype, from_both) - exact));
      plain_error = fmax(plain_error, fabs(round_to_16bit(view.dtype, exact) - exact));
    }
    if (threadIdx.x == 0) write_lse(want, n, visible > 0, row_lse, sink, size);
    __syncthreads();
  }
  raise_maxima(maxima, plain_error, largest, 0);
}

// Of e4m3, plain attention rounds P, at a scale that is free within a factor of two [16], and O; once it sums products
// as the tensor cores do.
constexpr int kP8Scales = 3;
__device__ double p8_unit(int which) {
  return which == 0 ? 256 : which == 1 ? 195 : 150;
}

struct Fp8Arrays {            // of longest_k each
  double* p;                  // exact
  double* p8[kP8Scales + 1];  // times the last one's factor, rounded; the last: of scores that the tensor cores sum
};
constexpr int kFp8Arrays = kP8Scales + 2;

__device__ Fp8Arrays fp8_arrays(double* all, int64_t longest_k) {
  Fp8Arrays arrays;
  arrays.p = all + static_cast<int64_t>(blockIdx.x) * kFp8Arrays * longest_k;
  for (int i = 0; i <= kP8Scales; ++i) arrays.p8[i] = arrays.p + (i + 1) * longest_k;
  return arrays;
}

// Rounds P times its factor, which is returned.
__device__ double round_p8(double* p8, const double* p, int64_t count, double unit) {
  double largest = 0;
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) largest = fmax(largest, p[j]);
  largest = block_max(largest);
  const double factor = largest > 0 ? unit / largest : 1;
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) p8[j] = round_to_e4m3(p[j] * factor);
  return factor;
}

struct Fp8Row {
  const uint8_t* v;  // of the sequence's first key
  int64_t step;      // to the next
  int64_t keys, sequence, head_k;
};

// sum over keys of p(j) times V of column c; p8 is 0 where no row sees a key, which may hold anything.
__device__ double p_times_v(const DeviceView& view, const Fp8Row& row, const double* p, int64_t c) {
  double sum = 0;
  for (int64_t j = 0; j < row.keys; ++j) {
    if (p[j] == 0) continue;
    sum +=
        p[j] * static_cast<double>(from_e4m3(row.v[j * row.step + c])) * view.v_scale.at(row.sequence, row.head_k, j);
  }
  return sum;
}
__device__ double p_times_v_by_cores(const DeviceView& view, const Fp8Row& row, const double* p8, int64_t c) {
  const int64_t most = view.v_scale.blocks > 1 ? 128 : optest::kTensorCoreKeys;
  double sum = 0;
  for (int64_t first = 0; first < row.keys; first += most) {
    const int64_t left = row.keys - first;
    const double part = optest::tensor_core_sum(
        left < most ? left : most, [&](int64_t n) { return p8[first + n]; },
        [&](int64_t n) {
          return p8[first + n] == 0 ? 0 : static_cast<double>(from_e4m3(row.v[(first + n) * row.step + c]));
        });
    sum += part * view.v_scale.at(row.sequence, row.head_k, first);
  }
  return sum;
}

// As oracle_kernel().
__global__ void fp8_oracle_kernel(DeviceView view, Sample sample, double* all_arrays, Right want, Maxima* maxima) {
  const Fp8Arrays arrays = fp8_arrays(all_arrays, view.longest_k);
  double* const of_cores = arrays.p8[kP8Scales];
  double plain_error = 0, plain_lse_error = 0, largest = 0;
  for (int64_t n = blockIdx.x; n < sample.count; n += gridDim.x) {
    const RowOfHead which = row_of_head(view, sample, n);
    const RowPlace place = place_of_row(view, which.row, false);
    double* const row_out = want.out + n * view.headdim_v;
    if (place.sequence < 0) {
      write_empty_row(view, want, n);
      continue;
    }
    const SequenceRange range = view.sequences[place.sequence];
    const int64_t entry = view.packed ? 0 : place.sequence;
    const int64_t head_k = which.head / (view.nheads_q / view.nheads_k);
    const uint8_t* q =
        static_cast<const uint8_t*>(view.q) + view.q_at.at(entry, view.packed ? which.row : place.position, which.head);
    const double q_scale = view.scale * view.q_scale.at(place.sequence, which.head, place.position);
    double visible = 0, size = 0;
    for (int64_t j = threadIdx.x; j < range.k_len; j += blockDim.x) {
      arrays.p[j] = of_cores[j] = -INFINITY;
      if (!sees(view, place.sequence, which.head, place.position, j)) continue;
      const uint8_t* k = static_cast<const uint8_t*>(view.k) + view.k_at.at(entry, range.k_begin + j, head_k);
      const Dot product = dot(q, k, view.headdim);
      const double scale = q_scale * view.k_scale.at(place.sequence, head_k, j);
      size = fmax(size, fabs(scale) * product.size);
      arrays.p[j] = capped(scale * product.sum, view.softcap);
      of_cores[j] = capped(scale * product.by_cores, view.softcap);
      visible = 1;
    }
    visible = block_max(visible);
    size = block_max(size);
    const double sink = view.sink != nullptr ? static_cast<double>(view.sink[which.head]) : -INFINITY;
    const double row_lse = softmax(arrays.p, range.k_len, sink);
    const double lse_of_cores = softmax(of_cores, range.k_len, sink);
    double factor[kP8Scales + 1];
    for (int i = 0; i < kP8Scales; ++i) factor[i] = round_p8(arrays.p8[i], arrays.p, range.k_len, p8_unit(i));
    factor[kP8Scales] = round_p8(of_cores, of_cores, range.k_len, p8_unit(0));
    __syncthreads();
    const uint8_t* v = static_cast<const uint8_t*>(view.v) + view.v_at.at(entry, range.k_begin, head_k);
    const Fp8Row row{v, view.v_at.row_stride, range.k_len, place.sequence, head_k};
    for (int64_t c = threadIdx.x; c < view.headdim_v; c += blockDim.x) {
      const double exact = p_times_v(view, row, arrays.p, c);
      for (int i = 0; i <= kP8Scales; ++i) {
        const double sum =
            i < kP8Scales ? p_times_v(view, row, arrays.p8[i], c) : p_times_v_by_cores(view, row, of_cores, c);
        plain_error = fmax(plain_error, fabs(round_to_out(view.out_dtype, sum / factor[i]) - exact));
      }
      row_out[c] = exact;
      largest = fmax(largest, fabs(exact));
    }
    if (visible > 0 && row_lse > -INFINITY) plain_lse_error = fmax(plain_lse_error, fabs(lse_of_cores - row_lse));
    if (threadIdx.x == 0) write_lse(want, n, visible > 0, row_lse, sink, size);
    __syncthreads();
  }
  raise_maxima(maxima, plain_error, largest, plain_lse_error);
}

__host__ __device__ int64_t out_element(const DeviceView& view, const RowOfHead& which) {
  return view.out_at.at(which.row / view.q_at.rows, which.row % view.q_at.rows, which.head);
}

__device__ double got_out(const DeviceView& view, int64_t element) {
  return view.out_dtype == TANDEM_FP32 ? static_cast<double>(static_cast<const float*>(view.out)[element])
                                       : from_16bit(view.out_dtype, static_cast<const uint16_t*>(view.out)[element]);
}

// The first fault: sample number * (headdim_v + 1) + column, where column headdim_v stands for LSE.
__global__ void compare_kernel(DeviceView view, Sample sample, Right want, double allowed, double allowed_lse,
                               unsigned long long* first_fault) {
  const int64_t width = view.headdim_v + 1;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; n < sample.count * width;
       n += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const RowOfHead which = row_of_head(view, sample, n / width);
    const int64_t column = n % width;
    const bool empty = want.empty[n / width] != 0;
    bool right;
    if (column == view.headdim_v) {
      const double lse = want.lse[n / width];
      const double got = view.lse == nullptr ? lse : view.lse[view.lse_index(which.row, which.head)];
      right = got == lse || (!empty && fabs(got - lse) <= want.lse_error[n / width] + allowed_lse);
    } else {
      const double error =
          fabs(got_out(view, out_element(view, which) + column) - want.out[n / width * view.headdim_v + column]);
      right = error <= (empty ? 0 : allowed);
    }
    if (!right) atomicMin(first_fault, static_cast<unsigned long long>(n));
  }
}

std::string describe_fault(const DeviceView& view, const Sample& sample, int64_t fault, const Right& right,
                           double allowed, double allowed_lse) {
  const int64_t width = view.headdim_v + 1;
  const int64_t n = fault / width;
  const int64_t column = fault % width;
  const RowOfHead which = row_of_head(view, sample, n);
  const bool of_lse = column == view.headdim_v;
  const int64_t element = out_element(view, which) + column;
  const double want = of_lse ? device_value(right.lse + n) : device_value(right.out + n * view.headdim_v + column);
  double got;
  if (of_lse) {
    got = device_value(view.lse + view.lse_index(which.row, which.head));
  } else if (view.out_dtype == TANDEM_FP32) {
    got = device_value(static_cast<const float*>(view.out) + element);
  } else {
    got = from_16bit(view.out_dtype, device_value(static_cast<const uint16_t*>(view.out) + element));
  }
  char text[300];
  std::snprintf(
      text, sizeof text,
      "%s of row %lld (of %lld in all), head %lld, column %lld is %.9g, the oracle says %.9g; allowed error %.3g",
      of_lse ? "LSE" : "O", static_cast<long long>(which.row), static_cast<long long>(view.rows_q()),
      static_cast<long long>(which.head), static_cast<long long>(of_lse ? 0 : column), got, want,
      of_lse ? device_value(right.lse_error + n) + allowed_lse : allowed);
  return text;
}

}  // namespace

std::string compare_with_oracle(const DeviceView& view, int64_t most_rows) {
  const int64_t all = view.rows_q() * view.nheads_q;
  if (all == 0) return "";
  Sample sample;
  sample.step = std::max<int64_t>(1, all / most_rows);
  if (sample.step > 1) sample.step |= 1;  // odd: even numbers of heads are all met
  sample.count = (all - 1) / sample.step + 1;
  const auto blocks = static_cast<unsigned int>(std::min<int64_t>(sample.count, kOracleBlocks));
  const bool fp8 = view.dtype == TANDEM_E4M3;
  const int64_t arrays = blocks * (fp8 ? kFp8Arrays : kScoreArrays);
  const PoolBuffer scores(static_cast<size_t>(arrays * view.longest_k) * sizeof(double));
  const PoolBuffer out(static_cast<size_t>(sample.count * view.headdim_v) * sizeof(double));
  const PoolBuffer lse(static_cast<size_t>(sample.count) * sizeof(double));
  const PoolBuffer empty(static_cast<size_t>(sample.count));
  const PoolBuffer lse_error(static_cast<size_t>(sample.count) * sizeof(double));
  const Right want{out.as<double>(), lse.as<double>(), empty.as<uint8_t>(), lse_error.as<double>()};
  const PoolBuffer maxima(sizeof(Maxima));
  const PoolBuffer first_fault(sizeof(unsigned long long));
  maxima.fill(0);
  first_fault.fill(0xff);
  const auto kernel = fp8 ? fp8_oracle_kernel : oracle_kernel;
  kernel<<<blocks, kOracleThreads>>>(view, sample, scores.as<double>(), want, maxima.as<Maxima>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  const Maxima found = device_value(maxima.as<Maxima>());
  const double plain_error = double_of(found.plain_error);
  const double allowed = 2 * plain_error + 2 * ulp_of(view.out_dtype, double_of(found.largest));
  const double allowed_lse = 2 * double_of(found.plain_lse_error);
  compare_kernel<<<kOracleBlocks, kOracleThreads>>>(view, sample, want, allowed, allowed_lse,
                                                    first_fault.as<unsigned long long>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  const auto fault = device_value(first_fault.as<unsigned long long>());
  if (fault == ~0ull) return "";
  return describe_fault(view, sample, static_cast<int64_t>(fault), want, allowed, allowed_lse);
}

}  // namespace tandem::gpu_test
