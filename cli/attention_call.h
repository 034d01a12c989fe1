#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu.h"
#include "tandem/tandem.h"
#include "tensor_buffer.h"

namespace tandem::cli {

// Everything that tandem.h's four attention structs hold, in one form. A call with cu_seqlens_q is packed.
struct AttentionCall {
  tandem_execution exec = {};
  tandem_tensor q = {}, k = {}, v = {}, out = {}, lse = {};
  tandem_tensor sink = {}, q_scale = {}, k_scale = {}, v_scale = {};
  tandem_tensor cu_seqlens_q = {}, cu_seqlens_k = {}, seqused_q = {}, seqused_k = {};
  tandem_tensor dout = {}, dlse = {}, dq = {}, dk = {}, dv = {}, dsink = {};  // backward only
  tandem_mask mask = {};
  bool has_softmax_scale = false;
  double softmax_scale = 0;
  double softcap = 0;

  bool packed() const { return cu_seqlens_q.ndim > 0; }
};

enum class Direction { kForward, kBackward };

// Shape of lse for q of (batch, seqlen_q, nheads_q, headdim), or packed (total_q, nheads_q, headdim).
std::vector<int64_t> lse_shape(const std::vector<int64_t>& q_shape);
// Shape of out: q's with v's headdim_v.
std::vector<int64_t> out_shape(const std::vector<int64_t>& q_shape, const std::vector<int64_t>& v_shape);

int32_t backend_from_name(const std::string& name);  // -1 if unknown; "auto" is TANDEM_BACKEND_AUTO

// Throws CliError(kLibraryRefused) with the library's sentence unless status is TANDEM_OK.
void require_ok(tandem_status status);

tandem_status check(const AttentionCall& call, Direction direction);

// A call with the workspace that it needs, to be run once or often. Its tensors are in host memory, contiguous, and
// must outlive it; for a call on a GPU they are copied there once, and run() works on the copies.
class PreparedCall {
 public:
  PreparedCall(const AttentionCall& call, Direction direction);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  void run() const;                           // on a GPU: queues the work
  void wait() const;                          // for all that run() has queued
  void fetch_results() const;                 // waits; on a GPU the results' copies go back to the caller's tensors
  std::vector<double> time(int count) const;  // milliseconds of each of so many runs

 private:
  struct Copy {
    void* host;
    GpuBuffer gpu;
    bool is_result;
  };

  bool on_gpu() const { return call_.exec.device.type == TANDEM_CUDA; }
  void move_to_gpu();
  void* allocate_workspace(uint64_t bytes);

  AttentionCall call_;
  Direction direction_;
  TensorBuffer workspace_;  // E4M3 elements serve as bytes
  std::vector<Copy> copies_;
};

// Runs the call once, results included.
void run_once(const AttentionCall& call, Direction direction);

}  // namespace tandem::cli
