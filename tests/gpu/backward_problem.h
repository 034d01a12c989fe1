#pragma once

#include <string>

#include "backward_oracle.h"
#include "device_problem.h"

namespace tandem::gpu_test {

// A backward problem that lives on device 0: the forward's with its results, and the gradients, which lie between
// guards as what they are the gradients of.
class BackwardProblem {
 public:
  // Runs the forward, with needs_grad.
  explicit BackwardProblem(const optest::Problem& problem, const Fill& fill = {}, bool head_major = false);
  BackwardProblem(const BackwardProblem&) = delete;

  // Gradients and scratch memory become NaN.
  void poison_results() const;
  // Through the C interface. What has been done here before is complete; `stream` is not waited for.
  tandem_status run(cudaStream_t stream, int32_t sm_margin = 0, bool checked = false) const;
  // Poisons, runs on a stream of its own, waits.
  tandem_status run_alone() const;

  // With one byte less of scratch memory than it asks for.
  tandem_status run_with_less_workspace() const;

  // Other contents, lengths and offsets in the same memory, with the forward's results for these.
  void change(const optest::Problem& problem, const Fill& fill);

  // Empty, or what is wrong with the results: values, guards.
  std::string fault(double most_products = 2e9, GradientErrors* errors = nullptr) const;
  // Of gradients that should have the same bits.
  bool same_bits(const BackwardProblem& other, const Fill& fill = {}) const;
  std::string text() const { return forward_.text(); }
  size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  void run_forward();
  void set_view();
  template <typename Params>
  Params params(cudaStream_t stream) const;
  template <typename Change>
  tandem_status run_with(cudaStream_t stream, Change change) const;

  DeviceProblem forward_;
  DeviceView view_;
  uint64_t seed_;
  PoolBuffer dout_, dq_, dk_, dv_;
  GuardedBuffer dlse_, dsink_, workspace_;
};

// Runs alone and compares. Empty: all is well.
std::string check_backward(const optest::Problem& problem, const Fill& fill = {}, bool head_major = false,
                           double most_products = 2e9);

}  // namespace tandem::gpu_test
