// Google Benchmark over the C interface. Arguments of each benchmark: batch, seqlen_q, seqlen_k, nheads_q, nheads_k,
// headdim, causal, dtype (the numbers of tandem.h). The thread count is OpenMP's default: set OMP_NUM_THREADS.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace {

struct Shape {
  explicit Shape(const benchmark::State& state)
      : batch(state.range(0)),
        seqlen_q(state.range(1)),
        seqlen_k(state.range(2)),
        nheads_q(state.range(3)),
        nheads_k(state.range(4)),
        headdim(state.range(5)),
        causal(static_cast<int32_t>(state.range(6))),
        dtype(static_cast<int32_t>(state.range(7))) {}

  double forward_flops() const {
    const double all = 4.0 * static_cast<double>(batch * nheads_q * seqlen_q * headdim) * static_cast<double>(seqlen_k);
    return causal ? all / 2 : all;
  }

  int64_t batch, seqlen_q, seqlen_k, nheads_q, nheads_k, headdim;
  int32_t causal, dtype;
};

// Memory for one tensor, with values of about unit size in any dtype.
class Buffer {
 public:
  Buffer(int64_t count, int32_t dtype) : dtype_(dtype), bytes_(static_cast<size_t>(count) * element_bytes(dtype)) {
    std::mt19937 random(static_cast<unsigned>(count));
    std::uniform_real_distribution<double> value(-1.7, 1.7);
    for (size_t i = 0; i < bytes_.size(); i += element_bytes(dtype)) write(bytes_.data() + i, value(random));
  }

  tandem_tensor view(std::initializer_list<int64_t> shape) {
    tandem_tensor tensor{};
    tensor.data = bytes_.data();
    tensor.dtype = dtype_;
    for (const int64_t length : shape) tensor.shape[tensor.ndim++] = length;
    int64_t stride = 1;
    for (int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
      tensor.stride[axis] = stride;
      stride *= tensor.shape[axis];
    }
    return tensor;
  }

 private:
  static size_t element_bytes(int32_t dtype) { return dtype == TANDEM_FP64 ? 8 : dtype == TANDEM_FP32 ? 4 : 2; }

  void write(unsigned char* at, double value) const {
    if (dtype_ == TANDEM_FP64) {
      std::memcpy(at, &value, sizeof value);
      return;
    }
    const auto single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    // The upper half of an fp32 is a bf16. Read as fp16 it is of moderate size too.
    if (dtype_ != TANDEM_FP32) bits >>= 16;
    std::memcpy(at, &bits, element_bytes(dtype_));
  }

  int32_t dtype_;
  std::vector<unsigned char> bytes_;
};

struct Tensors {
  explicit Tensors(const Shape& s)
      : q(s.batch * s.seqlen_q * s.nheads_q * s.headdim, s.dtype),
        k(s.batch * s.seqlen_k * s.nheads_k * s.headdim, s.dtype),
        v(s.batch * s.seqlen_k * s.nheads_k * s.headdim, s.dtype),
        out(s.batch * s.seqlen_q * s.nheads_q * s.headdim, s.dtype),
        lse(s.batch * s.nheads_q * s.seqlen_q, TANDEM_FP32),
        dout(s.batch * s.seqlen_q * s.nheads_q * s.headdim, s.dtype),
        dq(s.batch * s.seqlen_q * s.nheads_q * s.headdim, s.dtype),
        dk(s.batch * s.seqlen_k * s.nheads_k * s.headdim, s.dtype),
        dv(s.batch * s.seqlen_k * s.nheads_k * s.headdim, s.dtype) {}

  Buffer q, k, v, out, lse, dout, dq, dk, dv;
};

template <typename Params>
Params common_params(const Shape& s, Tensors& t) {
  Params params{};
  params.struct_size = sizeof params;
  params.q = t.q.view({s.batch, s.seqlen_q, s.nheads_q, s.headdim});
  params.k = t.k.view({s.batch, s.seqlen_k, s.nheads_k, s.headdim});
  params.v = t.v.view({s.batch, s.seqlen_k, s.nheads_k, s.headdim});
  params.out = t.out.view({s.batch, s.seqlen_q, s.nheads_q, s.headdim});
  params.lse = t.lse.view({s.batch, s.nheads_q, s.seqlen_q});
  params.mask.causal = s.causal;
  return params;
}

// One prepared call: parameters and a workspace of its own.
template <typename Params>
class Call {
 public:
  using Measure = tandem_status (*)(const Params*, uint64_t*, uint64_t*);
  using Run = tandem_status (*)(const Params*);

  Call(const Params& params, Measure measure, Run run) : params_(params), run_(run) {
    uint64_t bytes = 0;
    uint64_t alignment = 1;
    if (measure(&params_, &bytes, &alignment) != TANDEM_OK) return;  // the run will say why
    storage_.resize(bytes + alignment);
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    params_.exec.workspace = storage_.data() + (alignment - address % alignment) % alignment;
    params_.exec.workspace_bytes = bytes;
  }

  bool run() const { return run_(&params_) == TANDEM_OK; }

  void benchmark(benchmark::State& state, double flops) const {
    if (!run()) return state.SkipWithError(tandem_last_error());  // warms up, too
    for (auto _ : state) run();
    state.counters["FLOPS"] =
        benchmark::Counter(flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
    state.counters["workspace"] = benchmark::Counter(static_cast<double>(params_.exec.workspace_bytes),
                                                     benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
  }

 private:
  Params params_;
  Run run_;
  std::vector<unsigned char> storage_;
};

Call<tandem_forward_params> forward_call(const Shape& shape, Tensors& tensors) {
  return {common_params<tandem_forward_params>(shape, tensors), tandem_forward_workspace, tandem_forward};
}

void forward(benchmark::State& state) {
  const Shape shape(state);
  Tensors tensors(shape);
  forward_call(shape, tensors).benchmark(state, shape.forward_flops());
}

void backward(benchmark::State& state) {
  const Shape shape(state);
  Tensors tensors(shape);
  if (!forward_call(shape, tensors).run()) return state.SkipWithError(tandem_last_error());
  auto params = common_params<tandem_backward_params>(shape, tensors);
  params.dout = tensors.dout.view({shape.batch, shape.seqlen_q, shape.nheads_q, shape.headdim});
  params.dq = tensors.dq.view({shape.batch, shape.seqlen_q, shape.nheads_q, shape.headdim});
  params.dk = tensors.dk.view({shape.batch, shape.seqlen_k, shape.nheads_k, shape.headdim});
  params.dv = tensors.dv.view({shape.batch, shape.seqlen_k, shape.nheads_k, shape.headdim});
  const Call<tandem_backward_params> call(params, tandem_backward_workspace, tandem_backward);
  call.benchmark(state, 2.5 * shape.forward_flops());
}

void training_shapes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t dtype : {TANDEM_FP32, TANDEM_BF16}) {
    for (const int64_t causal : {0, 1}) {
      benchmark->Args({1, 4096, 4096, 16, 16, 64, causal, dtype});
      benchmark->Args({1, 4096, 4096, 8, 8, 128, causal, dtype});
    }
  }
  for (const int64_t headdim : {65, 80, 95, 96}) benchmark->Args({1, 2048, 2048, 4, 4, headdim, 0, TANDEM_FP32});
  benchmark->Args({1024, 16, 16, 4, 4, 64, 0, TANDEM_FP32});
  benchmark->Args({1, 1024, 1024, 4, 4, 64, 0, TANDEM_FP64});
}

void decode_shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({1, 1, 8192, 32, 8, 128, 1, TANDEM_FP32});
  benchmark->Args({1, 1, 8192, 32, 8, 128, 1, TANDEM_BF16});
  benchmark->Args({1, 1, 8192, 8, 8, 128, 1, TANDEM_BF16});
}

const std::vector<std::string> kArguments = {"batch", "q", "k", "hq", "hk", "d", "causal", "dtype"};

BENCHMARK(forward)->ArgNames(kArguments)->Apply(training_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(forward)->ArgNames(kArguments)->Apply(decode_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(backward)->ArgNames(kArguments)->Apply(training_shapes)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
