#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host_tensor.h"

namespace tandem::optest {

// lo or hi: (batch or 1, nheads_q or 1, seqlen_q), packed (nheads_q or 1, total_q).
struct Intervals {
  bool per_batch = true;
  bool per_head = true;
  std::vector<int32_t> values;
};

// Scales of fp8: (1), (batch, heads) or (batch, heads, blocks of 128 rows). `heads` may be fewer than the tensor's, for
// q: those of k.
struct ScaleSet {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t blocks = 1;
  int ndim = 1;
  std::vector<double> values;

  // Of row i of sequence b, for head h of `nheads`.
  double at(int64_t b, int64_t h, int64_t nheads, int64_t i) const;
};

// Where one sequence lies in the rows of the problem; dense rows are numbered b * seqlen + i.
struct Span {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t k_begin = 0;
  int64_t k_len = 0;
};

// One attention problem and the memory layout of its tensors. Lengths and offsets are valid (clamping is tested with
// hand-written parameters).
struct Problem {
  bool packed = false;
  int64_t batch = 1;
  int64_t nheads_q = 1;
  int64_t nheads_k = 1;
  int64_t seqlen_q = 1;  // dense
  int64_t seqlen_k = 1;
  int64_t total_q = 0;  // packed
  int64_t total_k = 0;
  int64_t headdim = 16;
  int64_t headdim_v = 16;
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k;
  std::vector<int32_t> seqused_q, seqused_k;  // empty: absent

  int32_t dtype = TANDEM_FP32;
  int32_t out_dtype = TANDEM_FP32;
  int32_t lse_dtype = TANDEM_FP32;
  bool with_lse = true;  // of the forward; the backward always has one
  bool with_dlse = false;

  bool causal = false;
  bool top_left = false;
  bool has_window = false;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t attention_chunk = 0;
  std::optional<Intervals> lo, hi;

  std::optional<ScaleSet> q_scale, k_scale, v_scale;  // fp8
  bool v_transposed = false;                          // v lies in slots (e4m3)

  std::vector<double> sink;  // empty: absent
  std::optional<double> softmax_scale;
  double softcap = 0;
  int32_t num_threads = 0;
  bool deterministic = false;
  bool checked = false;

  // Layouts of q, k, v (their gradients lie in `gradient_layout`), out and dout, lse, dlse and intervals.
  Layout q_layout, k_layout, v_layout, out_layout, dout_layout, lse_layout, dlse_layout, gradient_layout;

  int64_t rows_q() const { return packed ? total_q : batch * seqlen_q; }
  int64_t rows_k() const { return packed ? total_k : batch * seqlen_k; }
  Span span(int64_t b) const;
  double scale() const;

  Shape q_shape() const;
  Shape k_shape() const;
  Shape v_shape() const;
  // As the library gets it, which differs if v_transposed; and where element n of v_shape() lies in that.
  Shape stored_v_shape() const;
  int64_t stored_v_index(int64_t n) const;
  Shape out_shape() const;
  Shape lse_shape() const;
  // Position of (b, h, i) in the values of lse, which are ordered by its shape.
  int64_t lse_index(int64_t b, int64_t h, int64_t i) const;
};

Problem dense_problem(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k,
                      int64_t headdim, int32_t dtype = TANDEM_FP32);
// Sequences back to back.
Problem packed_problem(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k, int64_t nheads_q,
                       int64_t nheads_k, int64_t headdim, int32_t dtype = TANDEM_FP32);

// Does query row i of head h of sequence b see key j? The contract's sentence [3, 4].
bool visible(const Problem& problem, int64_t b, int64_t h, int64_t i, int64_t j);

// Values of the inputs in the order of their shapes, already rounded to their types. Rows that belong to no sequence
// hold whatever they hold: nothing may depend on them.
struct Inputs {
  std::vector<double> q, k, v, dout, dlse;
};

struct Results {
  std::vector<double> out, lse, dq, dk, dv, dsink;
};

enum class Poison { kNone, kNan, kInfinity };

// What the stored values of q, k and v stand for: times their scales.
Inputs real_inputs(const Problem& problem, const Inputs& inputs);

// Normal values. With `poison`, the rows that no sequence owns and the keys that no row sees hold NaN or infinity.
Inputs random_inputs(const Problem& problem, uint64_t seed, Poison poison = Poison::kNan);
// Every element of q, k, v and dout the same; dlse 0.
Inputs constant_inputs(const Problem& problem, double q, double k, double v, double dout);

std::string describe(const Problem& problem);

}  // namespace tandem::optest
