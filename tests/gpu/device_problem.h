#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device_view.h"
#include "fill.h"
#include "guarded_buffer.h"
#include "pool_buffer.h"
#include "problem.h"
#include "tandem/tandem.h"

namespace tandem::gpu_test {

// A forward problem that lives on device 0 from its making to its comparison, for sizes that would take long on the
// host. Its layouts are not those of the Problem: guard rows lie before, between and after the entries of the batch.
class DeviceProblem {
 public:
  explicit DeviceProblem(const optest::Problem& problem, const Fill& fill = {}, bool head_major = false);
  DeviceProblem(const DeviceProblem&) = delete;

  // Outputs and scratch memory become NaN.
  void poison_results() const;
  // Through the C interface. What has been done here before is complete; `stream` is not waited for.
  tandem_status run(cudaStream_t stream, int32_t sm_margin = 0, bool checked = false, bool needs_grad = false);
  // Poisons, runs on a stream of its own, waits.
  tandem_status run_alone(bool needs_grad = false);

  // Other contents, lengths and offsets in the same memory: `problem` differs from the first in those of its sequences.
  void change(const optest::Problem& problem, const Fill& fill);

  // Empty, or what is wrong with the results: values, guards.
  std::string fault(int64_t most_rows = 120000) const;
  // Of results that should have the same bits.
  bool same_bits(const DeviceProblem& other, const Fill& fill = {}) const;
  std::string text() const;
  const optest::Problem& problem() const { return problem_; }
  const DeviceView& view() const { return view_; }
  // What the forward's and the backward's parameters have in common, with the forward's scratch memory.
  template <typename Params>
  void fill_params(Params& params, cudaStream_t stream) const;
  tandem_tensor lse_tensor(float* lse) const;
  tandem_tensor tensor(const void* data, const Placement& place, int32_t dtype) const;
  tandem_tensor sink_tensor(float* sink) const;

 private:
  void set_problem(const optest::Problem& problem);
  void fill_all() const;
  // V^T.
  int64_t slot_lines() const;
  int64_t slot_stride() const;
  tandem_tensor v_tensor() const;

  optest::Problem problem_;
  Fill fill_;
  DeviceView view_;
  PoolBuffer q_, k_, v_, v_slots_, out_, q_scale_, k_scale_, v_scale_;
  GuardedBuffer lse_, workspace_;
  PoolBuffer sequences_, sink_, lo_, hi_, cu_seqlens_q_, cu_seqlens_k_, seqused_q_, seqused_k_;
};

// Runs alone and compares. Empty: all is well.
std::string check_on_device(const optest::Problem& problem, const Fill& fill = {}, bool head_major = false);

// Waits for a stream for at most 30 seconds; then ends the process, since a kernel that hangs lets nothing else happen.
void wait_for(cudaStream_t stream);

class Stream {
 public:
  Stream() { TANDEM_CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tandem::gpu_test
