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
};

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
      for (int64_t c = threadIdx.x; c < view.headdim_v; c += blockDim.x) row_out[c] = 0;
      if (threadIdx.x == 0) want.lse[n] = -INFINITY;
      if (threadIdx.x == 0) want.empty[n] = 1;
      continue;
    }
    const SequenceRange range = view.sequences[place.sequence];
    const int64_t entry = view.packed ? 0 : place.sequence;
    const int64_t head_k = which.head / (view.nheads_q / view.nheads_k);
    const uint16_t* q = view.q + view.q_at.at(entry, view.packed ? which.row : place.position, which.head);
    double visible = 0;
    double size = 0;
    for (int64_t j = threadIdx.x; j < range.k_len; j += blockDim.x) {
      s[j] = s_rounded[j] = -INFINITY;
      if (!sees(view, place.sequence, which.head, place.position, j)) continue;
      const uint16_t* k = view.k + view.k_at.at(entry, range.k_begin + j, head_k);
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
        const double v = from_16bit(view.dtype, view.v[view.v_at.at(entry, range.k_begin + j, head_k) + c]);
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
    if (threadIdx.x == 0) want.lse[n] = visible > 0 ? row_lse : sink;
    if (threadIdx.x == 0) want.empty[n] = visible == 0;
    if (threadIdx.x == 0) want.lse_error[n] = fmax(1e-5 * fmax(1.0, fabs(want.lse[n])), kSumError * size);
    __syncthreads();
  }
  plain_error = block_max(plain_error);
  largest = block_max(largest);
  if (threadIdx.x != 0) return;
  raise_to(&maxima->plain_error, plain_error);
  raise_to(&maxima->largest, largest);
}

__host__ __device__ int64_t out_element(const DeviceView& view, const RowOfHead& which) {
  return view.out_at.at(which.row / view.q_at.rows, which.row % view.q_at.rows, which.head);
}

__device__ double got_out(const DeviceView& view, int64_t element) {
  return view.out_dtype == TANDEM_FP32 ? static_cast<double>(static_cast<const float*>(view.out)[element])
                                       : from_16bit(view.out_dtype, static_cast<const uint16_t*>(view.out)[element]);
}

// The first fault: sample number * (headdim_v + 1) + column, where column headdim_v stands for LSE.
__global__ void compare_kernel(DeviceView view, Sample sample, Right want, double allowed,
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
      right = got == lse || (!empty && fabs(got - lse) <= want.lse_error[n / width]);
    } else {
      const double error =
          fabs(got_out(view, out_element(view, which) + column) - want.out[n / width * view.headdim_v + column]);
      right = error <= (empty ? 0 : allowed);
    }
    if (!right) atomicMin(first_fault, static_cast<unsigned long long>(n));
  }
}

std::string describe_fault(const DeviceView& view, const Sample& sample, int64_t fault, const Right& right,
                           double allowed) {
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
      of_lse ? device_value(right.lse_error + n) : allowed);
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
  const PoolBuffer scores(static_cast<size_t>(blocks * kScoreArrays * view.longest_k) * sizeof(double));
  const PoolBuffer out(static_cast<size_t>(sample.count * view.headdim_v) * sizeof(double));
  const PoolBuffer lse(static_cast<size_t>(sample.count) * sizeof(double));
  const PoolBuffer empty(static_cast<size_t>(sample.count));
  const PoolBuffer lse_error(static_cast<size_t>(sample.count) * sizeof(double));
  const Right want{out.as<double>(), lse.as<double>(), empty.as<uint8_t>(), lse_error.as<double>()};
  const PoolBuffer maxima(sizeof(Maxima));
  const PoolBuffer first_fault(sizeof(unsigned long long));
  maxima.fill(0);
  first_fault.fill(0xff);
  oracle_kernel<<<blocks, kOracleThreads>>>(view, sample, scores.as<double>(), want, maxima.as<Maxima>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  const Maxima found = device_value(maxima.as<Maxima>());
  const double plain_error = double_of(found.plain_error);
  const double allowed = 2 * plain_error + 2 * ulp_of(view.out_dtype, double_of(found.largest));
  compare_kernel<<<kOracleBlocks, kOracleThreads>>>(view, sample, want, allowed, first_fault.as<unsigned long long>());
  TANDEM_CHECK_CUDA(cudaGetLastError());
  const auto fault = device_value(first_fault.as<unsigned long long>());
  if (fault == ~0ull) return "";
  return describe_fault(view, sample, static_cast<int64_t>(fault), want, allowed);
}

}  // namespace tandem::gpu_test
