#include "oracle.h"

#include <cmath>

#include "core/int_math.h"
#include "cuda_check.h"

namespace tandem::gpu_test {
namespace {

constexpr int kThreads = 128;

struct OracleParams {
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  Tensor q_at, k_at, v_at;  // strides
  int64_t seqlen_q, seqlen_k, nheads_q, group, headdim, headdim_v;
  double scale;
  MaskSpec mask;
  bool rounded;
  double* out;
  double* lse;
};

__device__ double from_bf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// To nearest even, by the bits of fp32; one rounding more than needed, of no matter for a yardstick.
__device__ double round_to_bf16(double value) {
  const uint32_t bits = __float_as_uint(static_cast<float>(value));
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  return __uint_as_float(rounded);
}

// The rule of the contract [3], restated: does row i see key j?
__device__ bool sees(const OracleParams& p, int64_t i, int64_t j) {
  const int64_t position = i + (p.mask.top_left ? 0 : p.seqlen_k - p.seqlen_q);
  if (p.mask.causal && j > position) return false;
  if (p.mask.window_left >= 0 && j < position - p.mask.window_left) return false;
  if (p.mask.window_right >= 0 && j > position + p.mask.window_right) return false;
  if (p.mask.attention_chunk > 0) {
    return position >= 0 && j / p.mask.attention_chunk == position / p.mask.attention_chunk;
  }
  return true;
}

template <typename Combine>
__device__ double block_reduce(double value, Combine combine) {
  __shared__ double partial[kThreads];
  __syncthreads();
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) {
      partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + width]);
    }
    __syncthreads();
  }
  return partial[0];
}

// One block for each row of each head.
__global__ void oracle_kernel(OracleParams p) {
  extern __shared__ double scores[];
  const int64_t row = blockIdx.x % p.seqlen_q;
  const int64_t head = blockIdx.x / p.seqlen_q % p.nheads_q;
  const int64_t batch = blockIdx.x / p.seqlen_q / p.nheads_q;
  const uint16_t* q = p.q + batch * p.q_at.batch_stride + row * p.q_at.row_stride + head * p.q_at.head_stride;
  const uint16_t* k = p.k + batch * p.k_at.batch_stride + head / p.group * p.k_at.head_stride;
  const uint16_t* v = p.v + batch * p.v_at.batch_stride + head / p.group * p.v_at.head_stride;
  double maximum = -INFINITY;
  for (int64_t j = threadIdx.x; j < p.seqlen_k; j += kThreads) {
    double score = -INFINITY;
    if (sees(p, row, j)) {
      score = 0;
      for (int64_t c = 0; c < p.headdim; ++c) score += from_bf16(q[c]) * from_bf16(k[j * p.k_at.row_stride + c]);
      score *= p.scale;
      if (p.rounded) score = round_to_bf16(score);
    }
    scores[j] = score;
    maximum = fmax(maximum, score);
  }
  maximum = block_reduce(maximum, [](double a, double b) { return fmax(a, b); });
  const bool empty = maximum == -INFINITY;
  double sum = 0;
  for (int64_t j = threadIdx.x; j < p.seqlen_k; j += kThreads) {
    scores[j] = empty ? 0 : exp(scores[j] - maximum);
    sum += scores[j];
  }
  sum = block_reduce(sum, [](double a, double b) { return a + b; });
  for (int64_t j = threadIdx.x; p.rounded && j < p.seqlen_k; j += kThreads) {
    scores[j] = round_to_bf16(scores[j] / sum) * sum;
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < p.headdim_v; c += kThreads) {
    double value = 0;
    for (int64_t j = 0; j < p.seqlen_k; ++j) {
      if (scores[j] != 0) value += scores[j] * from_bf16(v[j * p.v_at.row_stride + c]);
    }
    value = empty ? 0 : value / sum;
    p.out[((batch * p.seqlen_q + row) * p.nheads_q + head) * p.headdim_v + c] =
        p.rounded ? round_to_bf16(value) : value;
  }
  if (threadIdx.x == 0) p.lse[(batch * p.nheads_q + head) * p.seqlen_q + row] = empty ? -INFINITY : maximum + log(sum);
}

}  // namespace

void attention_oracle(const AttentionProblem& problem, bool rounded, double* out, double* lse) {
  OracleParams params;
  params.q = static_cast<const uint16_t*>(problem.q.data);
  params.k = static_cast<const uint16_t*>(problem.k.data);
  params.v = static_cast<const uint16_t*>(problem.v.data);
  params.q_at = problem.q;
  params.k_at = problem.k;
  params.v_at = problem.v;
  params.seqlen_q = problem.seqlen_q;
  params.seqlen_k = problem.seqlen_k;
  params.nheads_q = problem.nheads_q;
  params.group = problem.qheads_per_khead();
  params.headdim = problem.headdim;
  params.headdim_v = problem.headdim_v;
  params.scale = problem.softmax_scale;
  params.mask = problem.mask;
  params.rounded = rounded;
  params.out = out;
  params.lse = lse;
  const auto blocks = static_cast<unsigned int>(problem.batch * problem.nheads_q * problem.seqlen_q);
  const auto bytes = static_cast<size_t>(ceil_div(problem.seqlen_k, 2)) * 2 * sizeof(double);  // read in pairs
  if (blocks == 0) return;
  TANDEM_CHECK_CUDA(
      cudaFuncSetAttribute(oracle_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  oracle_kernel<<<blocks, kThreads, bytes>>>(params);
  TANDEM_CHECK_CUDA(cudaGetLastError());
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

}  // namespace tandem::gpu_test
