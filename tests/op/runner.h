#pragma once

#include <string>

#include "device.h"
#include "problem.h"

namespace tandem::optest {

// Scratch memory at an aligned address, between guard bands.
class GuardedBytes {
 public:
  GuardedBytes() : GuardedBytes(0, 1) {}
  GuardedBytes(uint64_t bytes, uint64_t alignment);
  std::vector<uint8_t>& storage() { return storage_; }  // with the bands; the scratch memory begins at offset()
  size_t offset() const { return begin_; }
  bool guards_intact() const;

 private:
  std::vector<uint8_t> storage_;
  size_t begin_ = 0;
  size_t bytes_ = 0;
};

// Runs a problem through the C interface on one backend, in the memory that it wants. Every tensor lies between guard
// bands, outputs and scratch memory are NaN before the call, and after it `damage` says what was written that should
// not have been.
class Runner {
 public:
  Runner(const Problem& problem, const Inputs& inputs, int32_t backend);
  Runner(const Runner&) = delete;  // the parameter structs point into the tensors

  tandem_status forward();
  // Takes out and lse from the last forward() or from set_forward(); rows that belong to no sequence are NaN in both.
  tandem_status backward();
  void set_forward(const std::vector<double>& out, const std::vector<double>& lse);

  const Results& results() const { return results_; }
  const std::string& damage() const { return damage_; }
  // The inputs as stored: differs from what was passed where a layout makes elements overlap.
  const Inputs& inputs() const { return inputs_; }

 private:
  template <typename Params>
  void fill_common(Params& params, CallMemory& memory);
  template <typename Params>
  tandem_status call();
  void prepare_backward_inputs();
  void watch(std::vector<HostTensor*> inputs, std::vector<HostTensor*> outputs);
  void inspect();

  const Problem& problem_;
  int32_t backend_;
  Inputs inputs_;
  Results results_;
  std::string damage_;
  HostTensor q_, k_, v_, out_, lse_, dout_, dlse_, dq_, dk_, dv_, sink_, dsink_, lo_, hi_;
  HostTensor cu_seqlens_q_, cu_seqlens_k_, seqused_q_, seqused_k_, q_scale_, k_scale_, v_scale_;
  GuardedBytes workspace_;
  std::vector<HostTensor*> watched_inputs_, watched_outputs_;
};

// For problems that must succeed: throws std::runtime_error with the library's sentence, or with the damage done.
Results run_forward(const Problem& problem, const Inputs& inputs, int32_t backend);
Results run_both(const Problem& problem, const Inputs& inputs, int32_t backend);

// The same problem and values in fp64, contiguous: for the reference backend as an oracle.
Problem in_double(const Problem& problem);

}  // namespace tandem::optest
