// Times the forward kernel at the sizes of the paper's figures: 16384 tokens, hidden size 2048, bf16.
//
//   forward_bench [--calls N] [--other LIBRARY VARIANT FILE]...
//
// A JSON line for each size and library: over N single calls (default 31), the L2 flushed before each, after half a
// second of warm-up. FILE is a shared library with another implementation, timed in turn with ours:
//
//   extern "C" void attention_forward(const void* q, const void* k, const void* v, void* out, float* lse,
//                                     int64_t batch, int64_t seqlen, int64_t heads, int64_t headdim, int causal);
//
// on the default stream; q, k, v, out (batch, seqlen, heads, headdim), lse (batch, heads, seqlen), all contiguous.

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/problem.h"
#include "cuda_check.h"
#include "sm90/forward/launch.h"
#include "sm90/forward/traits.h"

namespace {

using namespace tandem;
using namespace tandem::gpu_test;

constexpr int64_t kTokens = 16384;
constexpr int64_t kHidden = 2048;
constexpr int64_t kHeadDim = sm90::ForwardInstance::kHeadDim;
constexpr int64_t kHeads = kHidden / kHeadDim;
constexpr size_t kTensorBytes = kTokens * kHidden * sizeof(uint16_t);
constexpr size_t kLseBytes = kTokens * kHeads * sizeof(float);
constexpr size_t kFlushBytes = size_t{256} << 20;  // five times the L2 of an H200

using ForwardFunction = void(const void* q, const void* k, const void* v, void* out, float* lse, int64_t batch,
                             int64_t seqlen, int64_t heads, int64_t headdim, int causal);

struct Size {
  int64_t seqlen;
  bool causal;
};

// Every size is another view of the same memory.
struct Data {
  DeviceBuffer q{kTensorBytes}, k{kTensorBytes}, v{kTensorBytes}, out{kTensorBytes}, lse{kLseBytes};
  DeviceBuffer workspace{256}, flushed{kFlushBytes};
};

struct Library {
  std::string name, variant;
  std::function<void(const Data&, const Size&)> call;
  std::vector<float> milliseconds = {};
};

// N(0, 1). A million values, whose number divides no row, over and over: drawing 10^8 takes longer than the timing.
void fill_normal(const DeviceBuffer& buffer, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(1000003);
  for (uint16_t& value : values) value = to_bf16(normal(random)).bits;
  const size_t bytes = values.size() * sizeof(uint16_t);
  for (size_t at = 0; at < kTensorBytes; at += bytes) {
    TANDEM_CHECK_CUDA(
        cudaMemcpy(buffer.as<char>() + at, values.data(), std::min(bytes, kTensorBytes - at), cudaMemcpyHostToDevice));
  }
}

Tensor tensor_view(const DeviceBuffer& buffer, int64_t seqlen) {
  Tensor tensor;
  tensor.data = buffer.as<void>();
  tensor.dtype = DType::kBf16;
  tensor.batch_stride = seqlen * kHidden;
  tensor.row_stride = kHidden;
  tensor.head_stride = kHeadDim;
  return tensor;
}

AttentionProblem make_problem(const Data& data, const Size& size) {
  AttentionProblem p;
  p.q = tensor_view(data.q, size.seqlen);
  p.k = tensor_view(data.k, size.seqlen);
  p.v = tensor_view(data.v, size.seqlen);
  p.out = tensor_view(data.out, size.seqlen);
  p.lse.data = data.lse.as<void>();
  p.lse.dtype = DType::kFp32;
  p.lse.batch_stride = kHeads * size.seqlen;
  p.lse.head_stride = size.seqlen;
  p.lse.row_stride = 1;
  p.batch = kTokens / size.seqlen;
  p.nheads_q = p.nheads_k = kHeads;
  p.headdim = p.headdim_v = kHeadDim;
  p.seqlen_q = p.total_q = p.seqlen_k = p.total_k = size.seqlen;
  p.dtype = p.out_dtype = DType::kBf16;
  p.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  p.mask.causal = size.causal;
  p.exec.device_type = TANDEM_CUDA;
  p.exec.workspace = data.workspace.as<void>();
  p.exec.workspace_bytes = 256;
  return p;
}

void call_tandem(const Data& data, const Size& size) {
  const Status status = sm90::launch_forward(make_problem(data, size));
  if (!status.is_ok()) throw std::runtime_error(status.message());
}

Library load_library(const char* name, const char* variant, const char* file) {
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle == nullptr ? nullptr : dlsym(handle, "attention_forward");
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  const auto function = reinterpret_cast<ForwardFunction*>(symbol);
  return {name, variant, [function](const Data& data, const Size& size) {
            function(data.q.as<void>(), data.k.as<void>(), data.v.as<void>(), data.out.as<void>(), data.lse.as<float>(),
                     kTokens / size.seqlen, size.seqlen, kHeads, kHeadDim, size.causal);
          }};
}

class EventTimer {
 public:
  EventTimer() {
    TANDEM_CHECK_CUDA(cudaEventCreate(&begin_));
    TANDEM_CHECK_CUDA(cudaEventCreate(&end_));
  }
  ~EventTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  // Milliseconds of one call. The host issues it while the flush still runs: its own time is not in them.
  float time(const Library& library, const Data& data, const Size& size) {
    data.flushed.fill(0);
    TANDEM_CHECK_CUDA(cudaEventRecord(begin_));
    library.call(data, size);
    TANDEM_CHECK_CUDA(cudaEventRecord(end_));
    TANDEM_CHECK_CUDA(cudaEventSynchronize(end_));
    TANDEM_CHECK_CUDA(cudaGetLastError());
    float milliseconds = 0;
    TANDEM_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds;
  }

 private:
  cudaEvent_t begin_, end_;
};

void warm_up(const std::vector<Library>& libraries, const Data& data, const Size& size) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500)) {
    for (const Library& library : libraries) library.call(data, size);
    TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
  }
}

void print(Library& library, const Size& size) {
  std::vector<float>& sorted = library.milliseconds;
  std::sort(sorted.begin(), sorted.end());
  const double milliseconds = sorted[sorted.size() / 2];
  const double pairs =
      static_cast<double>(kTokens * kHeads) * static_cast<double>(size.seqlen) * (size.causal ? 0.5 : 1);
  const double flops = 4 * pairs * static_cast<double>(kHeadDim);
  std::printf(
      "{\"op\": \"forward\", \"dtype\": \"bf16\", \"headdim\": %lld, \"headdim_v\": %lld, \"mask\": \"%s\", "
      "\"batch\": %lld, \"seqlen_q\": %lld, \"seqlen_k\": %lld, \"nheads_q\": %lld, \"nheads_k\": %lld, "
      "\"library\": \"%s\", \"variant\": \"%s\", \"ms\": %.5f, \"ms_min\": %.5f, \"ms_max\": %.5f, "
      "\"tflops\": %.1f, \"gbps\": %.1f}\n",
      static_cast<long long>(kHeadDim), static_cast<long long>(kHeadDim), size.causal ? "causal" : "none",
      static_cast<long long>(kTokens / size.seqlen), static_cast<long long>(size.seqlen),
      static_cast<long long>(size.seqlen), static_cast<long long>(kHeads), static_cast<long long>(kHeads),
      library.name.c_str(), library.variant.c_str(), milliseconds, static_cast<double>(sorted.front()),
      static_cast<double>(sorted.back()), flops / milliseconds * 1e-9,
      static_cast<double>(4 * kTensorBytes + kLseBytes) / milliseconds * 1e-6);
}

void bench(std::vector<Library>& libraries, int calls) {
  const Data data;
  fill_normal(data.q, 1);
  fill_normal(data.k, 2);
  fill_normal(data.v, 3);
  EventTimer timer;
  for (const bool causal : {false, true}) {
    for (const int64_t seqlen : {512, 1024, 2048, 4096, 8192, 16384}) {
      const Size size{seqlen, causal};
      warm_up(libraries, data, size);
      for (Library& library : libraries) library.milliseconds.clear();
      for (int call = 0; call < calls; ++call) {
        for (Library& library : libraries) library.milliseconds.push_back(timer.time(library, data, size));
      }
      for (Library& library : libraries) print(library, size);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int calls = 31;
  try {
    std::vector<Library> libraries;
    libraries.push_back({"tandem", "the frame's exact-softmax kernel, not a shipped path", call_tandem});
    for (int i = 1; i < argc;) {
      if (std::strcmp(argv[i], "--calls") == 0 && i + 1 < argc) {
        calls = std::max(1, std::atoi(argv[i + 1]));
        i += 2;
      } else if (std::strcmp(argv[i], "--other") == 0 && i + 3 < argc) {
        libraries.push_back(load_library(argv[i + 1], argv[i + 2], argv[i + 3]));
        i += 4;
      } else {
        std::fprintf(stderr, "forward_bench [--calls N] [--other LIBRARY VARIANT FILE]...\n");
        return 2;
      }
    }
    if (const std::string reason = missing_gpu(); !reason.empty()) throw std::runtime_error(reason);
    bench(libraries, calls);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forward_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
