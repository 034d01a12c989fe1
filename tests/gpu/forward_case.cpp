#include "forward_case.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "core/dtype.h"
#include "core/int_math.h"
#include "oracle.h"
#include "sm90/forward/plan.h"
#include "sm90/forward/traits.h"

namespace tandem::gpu_test {
namespace {

constexpr int64_t kHeadDim = sm90::ForwardInstance::kHeadDim;
constexpr int64_t kGuardRows = 3;
constexpr uint16_t kNanBits = 0x7fff;

// Rows of all heads, entry by entry with guard rows between.
int64_t rows_of(int64_t batch, int64_t seqlen) {
  return batch * (seqlen + kGuardRows) + kGuardRows;
}

size_t tensor_elems(int64_t batch, int64_t seqlen, int64_t row_elems) {
  return static_cast<size_t>(rows_of(batch, seqlen) * row_elems);
}

// `column`: where the tensor's heads begin in a row of row_elems.
Tensor tensor_view(void* base, int64_t seqlen, int64_t row_elems, int64_t column) {
  Tensor tensor;
  tensor.data = static_cast<uint16_t*>(base) + kGuardRows * row_elems + column;
  tensor.dtype = DType::kBf16;
  tensor.batch_stride = (seqlen + kGuardRows) * row_elems;
  tensor.row_stride = row_elems;
  tensor.head_stride = kHeadDim;
  return tensor;
}

// Normal values in the rows that exist, NaN in the guards. A large tensor repeats a million of them, whose number
// divides no row: drawing 10^9 would take longer than what is to be timed.
std::vector<uint16_t> random_tensor(std::mt19937_64& random, int64_t batch, int64_t seqlen, int64_t row_elems,
                                    float scale) {
  constexpr int64_t kMaxDistinct = 1000003;
  std::vector<uint16_t> values(tensor_elems(batch, seqlen, row_elems), kNanBits);
  std::vector<uint16_t> distinct(static_cast<size_t>(min_of(batch * seqlen * row_elems, kMaxDistinct)));
  std::normal_distribution<float> normal(0.0f, scale);
  for (uint16_t& value : distinct) value = to_bf16(normal(random)).bits;
  size_t next = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t first = (kGuardRows + b * (seqlen + kGuardRows)) * row_elems;
    for (int64_t i = 0; i < seqlen * row_elems; ++i) {
      values[static_cast<size_t>(first + i)] = distinct[next];
      if (++next == distinct.size()) next = 0;
    }
  }
  return values;
}

std::vector<double> host_copy(const DeviceBuffer& buffer, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  if (count > 0) buffer.to_host(values.data());
  return values;
}

}  // namespace

std::string ForwardCase::text() const {
  char text[300];
  std::snprintf(
      text, sizeof(text),
      "batch %lld, heads %lld/%lld, seqlens %lld x %lld, causal %d, top_left %d, window %lld %lld, chunk %lld, "
      "seed %llu, q_scale %g, interleaved %d",
      static_cast<long long>(batch), static_cast<long long>(nheads_q), static_cast<long long>(nheads_k),
      static_cast<long long>(seqlen_q), static_cast<long long>(seqlen_k), mask.causal, mask.top_left,
      static_cast<long long>(mask.window_left), static_cast<long long>(mask.window_right),
      static_cast<long long>(mask.attention_chunk), static_cast<unsigned long long>(seed), static_cast<double>(q_scale),
      interleaved);
  return text;
}

bool ForwardData::Outputs::operator==(const Outputs& other) const {
  return out == other.out && lse.size() == other.lse.size() &&
         std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
}

ForwardData::ForwardData(const ForwardCase& test)
    : q_(tensor_elems(test.batch, test.seqlen_q, test.nheads_q * kHeadDim * (test.interleaved ? 3 : 1)) * 2),
      k_(test.interleaved ? 0 : tensor_elems(test.batch, test.seqlen_k, test.nheads_k * kHeadDim) * 2),
      v_(test.interleaved ? 0 : tensor_elems(test.batch, test.seqlen_k, test.nheads_k * kHeadDim) * 2),
      out_(tensor_elems(test.batch, test.seqlen_q, test.nheads_q * kHeadDim) * 2),
      lse_(static_cast<size_t>(test.batch * test.nheads_q * test.seqlen_q) * sizeof(float)),
      workspace_(256),
      poisoned_out_(tensor_elems(test.batch, test.seqlen_q, test.nheads_q * kHeadDim), kNanBits) {
  std::mt19937_64 random(test.seed);
  const int64_t q_row = test.nheads_q * kHeadDim;
  const int64_t k_row = test.nheads_k * kHeadDim;
  AttentionProblem& p = problem_;
  if (test.interleaved) {
    q_.from_host(random_tensor(random, test.batch, test.seqlen_q, 3 * q_row, test.q_scale).data());
    p.q = tensor_view(q_.as<void>(), test.seqlen_q, 3 * q_row, 0);
    p.k = tensor_view(q_.as<void>(), test.seqlen_k, 3 * q_row, q_row);
    p.v = tensor_view(q_.as<void>(), test.seqlen_k, 3 * q_row, 2 * q_row);
  } else {
    q_.from_host(random_tensor(random, test.batch, test.seqlen_q, q_row, test.q_scale).data());
    k_.from_host(random_tensor(random, test.batch, test.seqlen_k, k_row, 1).data());
    v_.from_host(random_tensor(random, test.batch, test.seqlen_k, k_row, 1).data());
    p.q = tensor_view(q_.as<void>(), test.seqlen_q, q_row, 0);
    p.k = tensor_view(k_.as<void>(), test.seqlen_k, k_row, 0);
    p.v = tensor_view(v_.as<void>(), test.seqlen_k, k_row, 0);
  }
  p.out = tensor_view(out_.as<void>(), test.seqlen_q, q_row, 0);
  p.lse.data = lse_.as<void>();
  p.lse.dtype = DType::kFp32;
  p.lse.batch_stride = test.nheads_q * test.seqlen_q;
  p.lse.head_stride = test.seqlen_q;
  p.lse.row_stride = 1;
  p.batch = test.batch;
  p.nheads_q = test.nheads_q;
  p.nheads_k = test.nheads_k;
  p.headdim = p.headdim_v = kHeadDim;
  p.seqlen_q = p.total_q = test.seqlen_q;
  p.seqlen_k = p.total_k = test.seqlen_k;
  p.dtype = p.out_dtype = DType::kBf16;
  p.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  p.mask = test.mask;
  p.exec.device_type = TANDEM_CUDA;
  p.exec.workspace = workspace_.as<void>();
  p.exec.workspace_bytes = 256;
  poison_outputs();
}

void ForwardData::poison_outputs() const {
  out_.from_host(poisoned_out_.data());
  lse_.fill(0xff);
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());  // a fill does not wait for itself, nor do other streams
}

ForwardData::Outputs ForwardData::read() const {
  Outputs outputs;
  outputs.out.resize(poisoned_out_.size());
  outputs.lse.resize(static_cast<size_t>(problem_.batch * problem_.nheads_q * problem_.seqlen_q));
  out_.to_host(outputs.out.data());
  if (!outputs.lse.empty()) lse_.to_host(outputs.lse.data());
  return outputs;
}

std::string ForwardData::fault(const Outputs& outputs) const {
  const AttentionProblem& p = problem_;
  const int64_t rows = p.batch * p.nheads_q * p.seqlen_q;
  const DeviceBuffer out(static_cast<size_t>(rows * kHeadDim) * sizeof(double));
  const DeviceBuffer lse(static_cast<size_t>(rows) * sizeof(double));
  attention_oracle(p, true, out.as<double>(), lse.as<double>());
  const std::vector<double> plain = host_copy(out, rows * kHeadDim);
  attention_oracle(p, false, out.as<double>(), lse.as<double>());
  const std::vector<double> want = host_copy(out, rows * kHeadDim);
  const std::vector<double> want_lse = host_copy(lse, rows);

  double plain_error = 0;
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    plain_error = std::fmax(plain_error, std::fabs(plain[i] - want[i]));
    largest = std::fmax(largest, std::fabs(want[i]));
  }
  const double unit = largest > 0 ? std::ldexp(1.0, std::ilogb(largest) - 7) : 0;  // bf16 has 8 bits
  const double allowed = 2 * plain_error + 2 * unit;

  char text[200];
  std::vector<uint16_t> guards = outputs.out;  // what remains once the results are blanked must be the poison
  for (int64_t i = 0; i < rows * kHeadDim; ++i) {
    const int64_t column = i % (p.nheads_q * kHeadDim);
    const int64_t row = i / (p.nheads_q * kHeadDim) % p.seqlen_q;
    const int64_t b = i / (p.nheads_q * kHeadDim) / p.seqlen_q;
    const size_t at =
        static_cast<size_t>(kGuardRows * p.out.row_stride + b * p.out.batch_stride + row * p.out.row_stride + column);
    const double got = to_float(Bf16{outputs.out[at]});
    guards[at] = kNanBits;
    if (!(std::fabs(got - want[static_cast<size_t>(i)]) <= allowed)) {
      std::snprintf(text, sizeof(text), "O[%lld, %lld, column %lld]: want %g, got %g, allowed %g",
                    static_cast<long long>(b), static_cast<long long>(row), static_cast<long long>(column),
                    want[static_cast<size_t>(i)], got, allowed);
      return text;
    }
  }
  if (guards != poisoned_out_) return "a guard row of O was written";
  for (size_t i = 0; i < want_lse.size(); ++i) {
    const double got = outputs.lse[i];
    const bool both_empty = std::isinf(want_lse[i]) && got == want_lse[i];
    if (both_empty || std::fabs(got - want_lse[i]) <= 1e-5 * std::fmax(1.0, std::fabs(want_lse[i]))) continue;
    std::snprintf(text, sizeof(text), "LSE[%zu]: want %.9g, got %.9g", i, want_lse[i], got);
    return text;
  }
  return "";
}

}  // namespace tandem::gpu_test
