#pragma once

#include <cstdint>
#include <vector>

#include "device_problem.h"

namespace tandem::gpu_test {

// A call in a capture allocates and waits for nothing, or the capture would fail. Replays see the contents of their
// time.
class Graph {
 public:
  // call(): puts the work on the stream, and returns a tandem_status.
  template <typename Call>
  Graph(cudaStream_t stream, Call call) : stream_(stream) {
    cudaGraph_t graph;
    TANDEM_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    status_ = call();
    TANDEM_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    TANDEM_CHECK_CUDA(cudaGraphInstantiate(&graph_, graph, 0));
    TANDEM_CHECK_CUDA(cudaGraphDestroy(graph));
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  tandem_status status() const { return status_; }
  void replay() const {
    TANDEM_CHECK_CUDA(cudaGraphLaunch(graph_, stream_));
    wait_for(stream_);
  }

 private:
  cudaStream_t stream_;
  tandem_status status_ = TANDEM_OK;
  cudaGraphExec_t graph_ = nullptr;
};

// What a graph captured with five sequences of 300 rows and 700 keys is replayed with.
struct DenseLengths {
  std::vector<int32_t> q, k;
};
inline const DenseLengths kReplayedDense[] = {{{300, 300, 300, 300, 300}, {700, 700, 700, 700, 700}},
                                              {{1, 300, 17, 0, 64}, {1, 700, 17, 0, 65}},
                                              {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}},
                                              {{300, 1, 1, 1, 300}, {0, 128, 129, 699, 700}}};

// And one with five packed sequences in 500 rows and 1000 keys.
struct PackedLengths {
  std::vector<int32_t> offsets_q, offsets_k, used_k;
};
inline const PackedLengths kReplayedPacked[] = {
    {{0, 100, 200, 300, 400, 500}, {0, 200, 400, 600, 800, 1000}, {200, 200, 200, 200, 200}},
    {{0, 500, 500, 500, 500, 500}, {0, 1000, 1000, 1000, 1000, 1000}, {1000, 0, 0, 0, 0}},
    {{0, 0, 1, 2, 250, 500}, {0, 1, 2, 600, 601, 602}, {1, 0, 500, 1, 1}},
    {{0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 1000}, {0, 0, 0, 0, 9}}};

}  // namespace tandem::gpu_test
