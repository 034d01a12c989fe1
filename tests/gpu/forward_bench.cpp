// Times the forward kernel at the sizes of the paper's figures (16384 tokens, hidden size 2048).
//
//   forward_bench [--rounds R]
//
// A JSON line for each size: medians over R rounds of batches of about 8 ms, sizes interleaved, after 0.5 s of warm-up.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda_check.h"
#include "forward_case.h"
#include "sm90/forward/launch.h"
#include "sm90/forward/traits.h"

namespace {

using namespace tandem;
using namespace tandem::gpu_test;

constexpr int64_t kTokens = 16384;
constexpr int64_t kHidden = 2048;

struct Size {
  int64_t seqlen;
  bool causal;
  std::unique_ptr<ForwardData> data;
  int calls = 1;  // of a batch
  std::vector<float> milliseconds = {};
};

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

  // Milliseconds of one call, of `calls` in a row.
  float time(const AttentionProblem& problem, int calls) {
    TANDEM_CHECK_CUDA(cudaEventRecord(begin_));
    for (int i = 0; i < calls; ++i) run(problem);
    TANDEM_CHECK_CUDA(cudaEventRecord(end_));
    TANDEM_CHECK_CUDA(cudaEventSynchronize(end_));
    float milliseconds = 0;
    TANDEM_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds / static_cast<float>(calls);
  }

 private:
  static void run(const AttentionProblem& problem) {
    const Status status = sm90::launch_forward(problem);
    if (!status.is_ok()) throw std::runtime_error(status.message());
  }
  cudaEvent_t begin_, end_;
};

void warm_up(std::vector<Size>& sizes, EventTimer& timer) {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500)) {
    for (Size& size : sizes) size.calls = std::max(1, static_cast<int>(8.0f / timer.time(size.data->problem(), 2)));
  }
}

void print(const Size& size) {
  std::vector<float> sorted = size.milliseconds;
  std::sort(sorted.begin(), sorted.end());
  const double seconds = static_cast<double>(sorted[sorted.size() / 2]) * 1e-3;
  const AttentionProblem& p = size.data->problem();
  const double tiles = static_cast<double>(p.batch * p.nheads_q) * static_cast<double>(p.seqlen_q * p.seqlen_k);
  const double flops = 4 * tiles * static_cast<double>(p.headdim) * (size.causal ? 0.5 : 1.0);
  std::printf(
      "{\"bench\": \"forward\", \"backend\": \"sm90\", \"dtype\": \"bf16\", \"batch\": %lld, \"heads\": %lld, "
      "\"seqlen\": "
      "%lld, \"headdim\": %lld, \"causal\": %s, \"ms\": %.5f, \"tflops\": %.1f}\n",
      static_cast<long long>(p.batch), static_cast<long long>(p.nheads_q), static_cast<long long>(size.seqlen),
      static_cast<long long>(p.headdim), size.causal ? "true" : "false", seconds * 1e3, flops / seconds * 1e-12);
}

void bench(int rounds) {
  constexpr int64_t kHeads = kHidden / sm90::ForwardInstance::kHeadDim;
  std::vector<Size> sizes;
  for (const bool causal : {false, true}) {
    for (const int64_t seqlen : {512, 1024, 2048, 4096, 8192, 16384}) {
      ForwardCase test{kTokens / seqlen, kHeads, kHeads, seqlen, seqlen, {}, 1};
      test.mask.causal = causal;
      sizes.push_back({seqlen, causal, std::make_unique<ForwardData>(test)});
    }
  }
  EventTimer timer;
  warm_up(sizes, timer);
  for (int round = 0; round < rounds; ++round) {
    for (Size& size : sizes) size.milliseconds.push_back(timer.time(size.data->problem(), size.calls));
  }
  for (const Size& size : sizes) print(size);
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5;
  if (argc == 3 && std::strcmp(argv[1], "--rounds") == 0) rounds = std::max(1, std::atoi(argv[2]));
  try {
    if (const std::string reason = missing_gpu(); !reason.empty()) throw std::runtime_error(reason);
    bench(rounds);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forward_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
