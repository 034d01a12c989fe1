#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention_call.h"
#include "tensor_buffer.h"

// The cases of `tandem verify`: drawn from a seed and a number, and turned into tensors.
namespace tandem::cli {

struct VerifyCase {
  uint64_t seed = 0;
  int64_t index = 0;
  const char* group = "";
  int32_t dtype = TANDEM_FP32;
  int32_t out_dtype = TANDEM_FP32;
  bool backward = true;

  bool packed = false;
  int64_t nheads_q = 1, nheads_k = 1, headdim = 1, headdim_v = 1;
  std::vector<int64_t> seqlens_q, seqlens_k;  // one per sequence; dense: all the same
  std::vector<int64_t> used_q, used_k;        // seqused; empty: not given
  int64_t tail_q = 0, tail_k = 0;             // packed: rows that follow the last sequence
  int64_t dense_seqlen_q = 0, dense_seqlen_k = 0;

  bool causal = false, top_left = false, has_window = false;
  int64_t window_left = -1, window_right = -1, chunk = 0;
  bool lo = false, hi = false, intervals_per_head = false;
  bool has_scale = false, sink = false, dlse = false;
  double scale = 0, softcap = 0;
  int32_t threads = 0;

  int64_t batch() const { return static_cast<int64_t>(seqlens_q.size()); }
  int64_t rows_q() const;  // of the whole buffer: batch * seqlen_q, or total_q
  int64_t rows_k() const;
  double softmax_scale() const;
  bool fp8() const;
};

// Cases are numbered through: number i belongs to group i modulo the number of groups.
int64_t verify_group_count();
const char* verify_group_name(int64_t group);
VerifyCase draw_case(uint64_t seed, int64_t index);
// Makes it a case for a GPU backend: the forward only, in a 16-bit type (or fp8), with head dims that are multiples
// of 8.
void adapt_to_gpu(VerifyCase& c);
std::string describe(const VerifyCase& c);

// Where the used rows of sequence b lie, in rows of the whole buffer.
struct SequenceRows {
  int64_t q_begin = 0, q_len = 0, k_begin = 0, k_len = 0;
};
SequenceRows sequence_rows(const VerifyCase& c, int64_t b);
int64_t lse_index(const VerifyCase& c, int64_t b, int64_t head, int64_t row);
int64_t interval_index(const VerifyCase& c, int64_t b, int64_t head, int64_t row);

struct CaseInputs {
  TensorBuffer q, k, v, dout, dlse, sink, lo, hi;
  TensorBuffer q_scale, k_scale, v_scale;
  TensorBuffer cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
};

// Storage that no row may see (gaps, tails, unused slots) holds NaN.
CaseInputs make_inputs(const VerifyCase& c);

}  // namespace tandem::cli
