#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "sm90/backward/layout.h"
#include "sm90/backward/tiles.h"

namespace tandem::gpu_test {

// What of a backward problem matters to the kernels before and after the backward kernel. No CUDA: the host model runs
// the same cases.
struct RowsCase {
  const char* name = "";
  int64_t headdim = 64;
  int64_t headdim_v = 64;
  DType dtype = DType::kBf16;
  int64_t batch = 2;
  int64_t nheads_q = 3;
  int64_t seqlen_q = 70;  // dense
  int64_t seqlen_k = 90;
  std::vector<int> cu_seqlens_q, cu_seqlens_k;  // packed if given
  int64_t total_q = 0;
  int64_t total_k = 0;
  std::vector<int> seqused_q, seqused_k;  // may be empty
  MaskSpec mask;
  bool lo = false;  // interval arrays of each head
  bool hi = false;
  bool sink = false;
  bool dlse = false;
  bool infinite_lse = false;  // of some rows: +inf
  int64_t padding = 0;        // elements between the rows of one head, a multiple of 8
  bool head_major = false;
  uint64_t seed = 1;

  bool packed() const { return !cu_seqlens_q.empty(); }
  int tiles_row() const;  // of kBackwardTiles; -1: there is none
};

// The case's tensors in some memory.
struct RowsPointers {
  void *out, *dout, *lse, *dlse, *sink, *lo, *hi, *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k;
  void *dq, *dsink, *workspace;
};

// Inputs on the host, and what must become of them. Rows without a used key hold NaN wherever nobody may look.
class RowsData {
 public:
  explicit RowsData(const RowsCase& test);

  // Where each input goes: called with its name, bytes, size and the pointer to fill in.
  using Upload = std::function<void*(const char* name, const void* data, size_t bytes)>;
  RowsPointers upload(const Upload& upload) const;
  AttentionProblem problem(const RowsPointers& at) const;

  int tiles_row() const { return test_.tiles_row(); }
  size_t dq_bytes() const { return static_cast<size_t>(elements_of(test_.headdim)) * 2; }
  size_t dsink_bytes() const { return static_cast<size_t>(test_.nheads_q) * 4; }
  size_t workspace_bytes() const { return layout_.bytes; }

  // These take host copies of the workspace. Empty if what the kernels before left there is right, else what is wrong.
  std::string fault_of_workspace(const std::vector<uint8_t>& workspace) const;
  // Puts in what the backward kernel would: NaN in rows that see no key.
  void set_sums(std::vector<uint8_t>& workspace) const;
  // After the kernels that come last. Before the run dq was filled with 0xff.
  std::string fault_of_results(const std::vector<uint8_t>& workspace, const std::vector<uint8_t>& dq,
                               const std::vector<float>& dsink) const;

 private:
  struct Span {
    int begin, rows, len;
    bool operator==(const Span& other) const { return begin == other.begin && rows == other.rows && len == other.len; }
  };
  struct Sequence {
    Span q, k;
    int batch = 0;  // entry of the batch; packed: 0
    int m_block_begin = 0;
  };
  struct Row {
    int64_t batch, head;
    int64_t row;  // of the buffer
  };
  // One row of one head, in its sequence.
  struct Place {
    const Sequence* sequence;
    int m_block, m;
    int64_t head;
    int row(int block_m) const { return m_block * block_m + m; }
  };
  struct Keys {
    int lo, hi;  // none: 0, 0
  };

  int64_t rows_of_buffer() const { return test_.packed() ? test_.total_q : test_.seqlen_q; }
  int64_t entries() const { return test_.packed() ? 1 : test_.batch; }
  int64_t elements_of(int64_t headdim) const;
  Tensor tensor(void* data, int64_t headdim) const;
  RowTensor row_tensor(void* data, DType dtype) const;
  size_t row_value(const Row& at) const;
  std::vector<Sequence> expected_sequences() const;
  std::vector<Sequence> sequences(const std::vector<uint8_t>& workspace) const;
  std::string fault_of_sequences(const std::vector<uint8_t>& workspace) const;
  std::string fault_of_row(const std::vector<uint8_t>& workspace, const Place& at) const;
  std::string fault_of_bounds(const std::vector<uint8_t>& workspace, const Place& first) const;
  std::string fault_of_dq(const std::vector<uint8_t>& dq, const Place& at) const;
  std::string fault_of_dsink(const std::vector<float>& dsink) const;
  // Calls `check` for each row of each m_block of each head until it gives a fault.
  std::string first_fault(const std::vector<uint8_t>& workspace, const std::function<std::string(const Place&)>& check,
                          int step) const;
  Keys keys_of_row(const Sequence& sequence, int row, int64_t head) const;
  bool sees(const Sequence& sequence, int row, int64_t head) const;
  bool has_gradient(const Sequence& sequence, int row, int64_t head) const;
  double delta(const Row& at, double& magnitude) const;
  float sum(const Row& at, int64_t column) const;
  int64_t q_block(const Place& at) const;

  RowsCase test_;
  sm90::BackwardTiles tiles_;
  sm90::BackwardLayout layout_;
  std::vector<uint8_t> out_, dout_;
  std::vector<float> lse_, dlse_, sink_;
  std::vector<int> lo_, hi_;
};

// Every head dim and layout, grouped lengths, gaps, sequences without rows or keys, masks, intervals, sinks.
std::vector<RowsCase> rows_cases();

}  // namespace tandem::gpu_test
