#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.h"
#include "cuda_check.h"

namespace tandem::gpu_test {

// A dense bf16 forward problem with data in device memory, made from a seed.
struct ForwardCase {
  int64_t batch = 1, nheads_q = 1, nheads_k = 1, seqlen_q = 1, seqlen_k = 1;
  MaskSpec mask;
  uint64_t seed = 1;
  float q_scale = 1;         // > 1: peaked rows
  bool interleaved = false;  // q, k, v are slices of one buffer (needs equal lengths and heads)

  std::string text() const;
};

// NaN guard rows lie between the entries of the batch, before and after each tensor; outputs start as NaN.
class ForwardData {
 public:
  explicit ForwardData(const ForwardCase& test);
  const AttentionProblem& problem() const { return problem_; }
  void poison_outputs() const;
  const uint16_t* out_begin() const { return out_.as<uint16_t>(); }  // of the whole buffer, where Outputs::out begins

  struct Outputs {
    std::vector<uint16_t> out;  // the whole buffers, guards included
    std::vector<float> lse;
    bool operator==(const Outputs& other) const;  // bitwise
  };
  Outputs read() const;

  // Empty, or where `outputs` misses the double reference by more than the contract allows [16], or a guard was
  // written.
  std::string fault(const Outputs& outputs) const;

 private:
  AttentionProblem problem_;
  DeviceBuffer q_, k_, v_, out_, lse_, workspace_;
  std::vector<uint16_t> poisoned_out_;
};

}  // namespace tandem::gpu_test
