#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "engine/global_memory.h"
#include "problem.h"

namespace tandem::model {

// Tensors of a problem of the operator tests, 16-bit or e4m3, in the model's global memory: contiguous, but for V^T,
// which has unused slots, and NaN in all slots without a key.
class ProblemMemory {
 public:
  ProblemMemory(GlobalMemory& global, const optest::Problem& problem) : global_(global), problem_(problem) {}

  // The problem with all that forward and backward both read.
  AttentionProblem attention_problem(const optest::Inputs& inputs);

  // Of q's, k's or v's shape and type, by rows of all sequences, heads and columns.
  Tensor upload(const char* name, const std::vector<double>& values, int64_t rows, int64_t heads, int64_t headdim);
  // Of out's type.
  Tensor allocate(const char* name, int64_t rows, int64_t heads, int64_t headdim);
  // Of lse's shape.
  RowTensor upload_row_values(const char* name, const std::vector<double>& values);
  RowTensor allocate_row_values(const char* name);

  // Of tensors that a kernel has written. Where it has not, `unwritten` gets the first byte's name.
  std::vector<double> values_of(const Tensor& tensor, int64_t rows, int64_t heads, int64_t headdim,
                                std::string& unwritten) const;
  std::vector<double> values_of(const RowTensor& tensor, std::string& unwritten) const;

 private:
  RowTensor row_tensor(void* data) const;
  Tensor tensor(void* data, DType dtype, int64_t rows, int64_t heads, int64_t headdim) const;
  Tensor upload_transposed_v(const std::vector<double>& values);
  Scales scales(const char* name, const std::optional<optest::ScaleSet>& given, int64_t nheads);
  RowTensor intervals(const char* name, const optest::Intervals& given);

  GlobalMemory& global_;
  const optest::Problem& problem_;
};

}  // namespace tandem::model
