#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/problem.h"

namespace tandem::gpu_test {

// What of a merge a test chooses. No CUDA: the host model runs the same cases.
struct MergeCase {
  int64_t parts = 3;
  int64_t batch = 2;
  int64_t rows = 7;
  int64_t nheads = 3;
  int64_t headdim_v = 64;
  DType in = DType::kFp32;
  DType out = DType::kFp32;
  bool sink = false;
  bool wants_lse = true;
  int64_t padding = 0;  // elements between rows, and between the heads' rows of the statistics
  double lse_spread = 3;
  bool nan_in_lse = false;  // of some parts
  uint64_t seed = 1;
  std::string text() const;
};

struct MergePointers {
  void* out_partial;
  void* lse_partial;
  void* sink;
  void* out;
  void* lse;
};

// Random partial results, on the host. A third of them are empty, their O NaN; so rows have none, one or several that
// are not.
class MergeData {
 public:
  struct Row {
    int64_t batch, head, row;
  };

  explicit MergeData(const MergeCase& test);

  const std::vector<uint8_t>& out_partial() const { return out_partial_; }
  const std::vector<float>& lse_partial() const { return lse_partial_; }
  const std::vector<float>& sink() const { return sink_; }
  size_t out_bytes() const;  // gaps included
  size_t lse_elems() const;

  MergeProblem problem(const MergePointers& at) const;

  // Takes host copies. Empty if the results are right, by a double loop over the definition; else which are not. Before
  // the run both were filled with 0xff.
  std::string fault(const std::vector<uint8_t>& out, const std::vector<float>& lse) const;

 private:
  struct RowResult {
    std::vector<int64_t> parts;  // that are not empty
    std::vector<double> weights;
    double lse = 0;
    bool exact = false;  // nothing to compute
  };
  RowResult expected_row(const MergeProblem& p, const Row& at) const;
  std::string fault_of_lse(const MergeProblem& p, const Row& at, const RowResult& want) const;
  std::string fault_of_out(const MergeProblem& p, const Row& at, const RowResult& want) const;
  std::string fault_of_row(const MergeProblem& p, const Row& at) const;
  bool gap_is_untouched(const std::vector<uint8_t>& out, int64_t row) const;  // row: (batch, row)
  int64_t row_elems() const { return test_.nheads * test_.headdim_v + test_.padding; }
  int64_t head_elems() const { return test_.rows + test_.padding; }

  MergeCase test_;
  std::vector<uint8_t> out_partial_;
  std::vector<float> lse_partial_;
  std::vector<float> sink_;
};

// The cases of both programs: every pair of types, odd sizes and strides, one part and many, sinks, rows without keys.
std::vector<MergeCase> merge_cases();

}  // namespace tandem::gpu_test
