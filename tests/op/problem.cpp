#include "problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "float_types.h"

namespace tandem::optest {
namespace {

int64_t used(const std::vector<int32_t>& seqused, int64_t b, int64_t length) {
  return seqused.empty() ? length : seqused[static_cast<size_t>(b)];
}

int32_t interval_value(const Problem& problem, const Intervals& intervals, int64_t b, int64_t h, int64_t i) {
  const int64_t head = intervals.per_head ? h : 0;
  if (problem.packed) {
    return intervals.values[static_cast<size_t>(head * problem.total_q + problem.span(b).q_begin + i)];
  }
  const int64_t heads = intervals.per_head ? problem.nheads_q : 1;
  const int64_t entry = intervals.per_batch ? b : 0;
  return intervals.values[static_cast<size_t>((entry * heads + head) * problem.seqlen_q + i)];
}

int64_t floor_div(int64_t a, int64_t b) {
  return static_cast<int64_t>(std::floor(static_cast<double>(a) / b));
}

bool any_row_sees(const Problem& problem, int64_t b, int64_t head_k, int64_t key, int64_t q_len) {
  const int64_t group = problem.nheads_q / problem.nheads_k;
  for (int64_t h = head_k * group; h < (head_k + 1) * group; ++h) {
    for (int64_t i = 0; i < q_len; ++i) {
      if (visible(problem, b, h, i, key)) return true;
    }
  }
  return false;
}

std::vector<int32_t> offsets(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> result = {0};
  for (int32_t length : lengths) result.push_back(result.back() + length);
  return result;
}

// Fills a (rows, nheads, columns) array row by row.
class Filler {
 public:
  Filler(uint64_t seed, int32_t dtype) : engine_(seed), dtype_(dtype) {}
  void fill(std::vector<double>& values, int64_t begin, int64_t count) {
    for (int64_t n = begin; n < begin + count; ++n) values[static_cast<size_t>(n)] = round_to(dtype_, normal_(engine_));
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  int32_t dtype_;
};

}  // namespace

Span Problem::span(int64_t b) const {
  if (!packed) return {b * seqlen_q, used(seqused_q, b, seqlen_q), b * seqlen_k, used(seqused_k, b, seqlen_k)};
  const size_t n = static_cast<size_t>(b);
  const int64_t q_begin = cu_seqlens_q[n];  // 64 bits: tests of clamping have offsets whose difference needs them
  const int64_t k_begin = cu_seqlens_k[n];
  return {q_begin, used(seqused_q, b, cu_seqlens_q[n + 1] - q_begin), k_begin,
          used(seqused_k, b, cu_seqlens_k[n + 1] - k_begin)};
}

double Problem::scale() const {
  return softmax_scale ? *softmax_scale : 1 / std::sqrt(static_cast<double>(headdim));
}

Shape Problem::q_shape() const {
  return packed ? Shape{total_q, nheads_q, headdim} : Shape{batch, seqlen_q, nheads_q, headdim};
}
Shape Problem::k_shape() const {
  return packed ? Shape{total_k, nheads_k, headdim} : Shape{batch, seqlen_k, nheads_k, headdim};
}
Shape Problem::v_shape() const {
  return packed ? Shape{total_k, nheads_k, headdim_v} : Shape{batch, seqlen_k, nheads_k, headdim_v};
}
Shape Problem::out_shape() const {
  return packed ? Shape{total_q, nheads_q, headdim_v} : Shape{batch, seqlen_q, nheads_q, headdim_v};
}
Shape Problem::lse_shape() const {
  return packed ? Shape{nheads_q, total_q} : Shape{batch, nheads_q, seqlen_q};
}

Shape Problem::stored_v_shape() const {
  if (!v_transposed) return v_shape();
  if (packed) return {nheads_k, headdim_v, 16 * (total_k / 16 + batch)};
  return {batch, nheads_k, headdim_v, (seqlen_k + 15) / 16 * 16};
}

// The layout of tandem.h. Rows between packed sequences have no slot: -1.
int64_t Problem::stored_v_index(int64_t n) const {
  if (!v_transposed) return n;
  constexpr int kKeys[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  const int64_t column = n % headdim_v;
  const int64_t head = n / headdim_v % nheads_k;
  int64_t key = n / headdim_v / nheads_k;
  int64_t line = head * headdim_v + column;
  int64_t first = 0;
  if (packed) {
    int64_t b = 0;
    while (b < batch && key >= cu_seqlens_k[static_cast<size_t>(b + 1)]) ++b;
    if (b == batch) return -1;
    first = 16 * (cu_seqlens_k[static_cast<size_t>(b)] / 16 + b);
    key -= cu_seqlens_k[static_cast<size_t>(b)];
  } else {
    line += key / seqlen_k * nheads_k * headdim_v;
    key %= seqlen_k;
  }
  const int64_t slot = first + key / 16 * 16 + (std::find(kKeys, kKeys + 16, key % 16) - kKeys);
  return line * stored_v_shape().back() + slot;
}

int64_t Problem::lse_index(int64_t b, int64_t h, int64_t i) const {
  return packed ? h * total_q + cu_seqlens_q[static_cast<size_t>(b)] + i : (b * nheads_q + h) * seqlen_q + i;
}

Problem dense_problem(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k,
                      int64_t headdim, int32_t dtype) {
  Problem problem;
  problem.batch = batch;
  problem.seqlen_q = seqlen_q;
  problem.seqlen_k = seqlen_k;
  problem.nheads_q = nheads_q;
  problem.nheads_k = nheads_k;
  problem.headdim = problem.headdim_v = headdim;
  problem.dtype = problem.out_dtype = dtype;
  problem.lse_dtype = dtype == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32;
  return problem;
}

Problem packed_problem(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k, int64_t nheads_q,
                       int64_t nheads_k, int64_t headdim, int32_t dtype) {
  Problem problem = dense_problem(static_cast<int64_t>(lengths_q.size()), 0, 0, nheads_q, nheads_k, headdim, dtype);
  problem.packed = true;
  problem.cu_seqlens_q = offsets(lengths_q);
  problem.cu_seqlens_k = offsets(lengths_k);
  problem.total_q = problem.cu_seqlens_q.back();
  problem.total_k = problem.cu_seqlens_k.back();
  return problem;
}

bool visible(const Problem& problem, int64_t b, int64_t h, int64_t i, int64_t j) {
  const Span span = problem.span(b);
  const int64_t position = i + (problem.top_left ? 0 : span.k_len - span.q_len);
  if (j < 0 || j >= span.k_len) return false;
  if (problem.causal && j > position) return false;
  if (problem.has_window && problem.window_left >= 0 && position - j > problem.window_left) return false;
  if (problem.has_window && problem.window_right >= 0 && j - position > problem.window_right) return false;
  const int64_t chunk = problem.attention_chunk;
  if (chunk > 0 && floor_div(j, chunk) != floor_div(position, chunk)) return false;
  if (problem.lo && j < interval_value(problem, *problem.lo, b, h, i)) return false;
  if (problem.hi && j >= interval_value(problem, *problem.hi, b, h, i)) return false;
  return true;
}

double ScaleSet::at(int64_t b, int64_t h, int64_t nheads, int64_t i) const {
  const int64_t entry = ndim == 1 ? 0 : b;
  const int64_t head = ndim == 1 ? 0 : h / (nheads / heads);
  const int64_t block = std::min(i / 128, blocks - 1);
  return values[static_cast<size_t>((entry * heads + head) * blocks + block)];
}

Inputs real_inputs(const Problem& problem, const Inputs& inputs) {
  Inputs real = inputs;
  const auto scale = [](std::vector<double>& values, const std::optional<ScaleSet>& scales, int64_t b, int64_t begin,
                        int64_t rows, int64_t nheads, int64_t columns) {
    if (!scales) return;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t h = 0; h < nheads; ++h) {
        const double factor = scales->at(b, h, nheads, i);
        for (int64_t c = 0; c < columns; ++c) {
          values[static_cast<size_t>(((begin + i) * nheads + h) * columns + c)] *= factor;
        }
      }
    }
  };
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = problem.span(b);
    scale(real.q, problem.q_scale, b, span.q_begin, span.q_len, problem.nheads_q, problem.headdim);
    scale(real.k, problem.k_scale, b, span.k_begin, span.k_len, problem.nheads_k, problem.headdim);
    scale(real.v, problem.v_scale, b, span.k_begin, span.k_len, problem.nheads_k, problem.headdim_v);
  }
  return real;
}

Inputs random_inputs(const Problem& problem, uint64_t seed, Poison poison) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double fill = poison == Poison::kNone  ? 0
                      : poison == Poison::kNan ? nan
                                               : std::numeric_limits<double>::infinity();
  Inputs inputs;
  inputs.q.assign(static_cast<size_t>(problem.rows_q() * problem.nheads_q * problem.headdim), fill);
  inputs.k.assign(static_cast<size_t>(problem.rows_k() * problem.nheads_k * problem.headdim), fill);
  inputs.v.assign(static_cast<size_t>(problem.rows_k() * problem.nheads_k * problem.headdim_v), fill);
  inputs.dout.assign(static_cast<size_t>(problem.rows_q() * problem.nheads_q * problem.headdim_v), fill);
  inputs.dlse.assign(static_cast<size_t>(problem.rows_q() * problem.nheads_q), fill);
  Filler values(seed, problem.dtype);
  Filler out_values(seed + 1, problem.out_dtype);
  Filler lse_values(seed + 2, problem.lse_dtype);
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = problem.span(b);
    const int64_t q_width = problem.nheads_q * problem.headdim;
    const int64_t out_width = problem.nheads_q * problem.headdim_v;
    values.fill(inputs.q, span.q_begin * q_width, span.q_len * q_width);
    out_values.fill(inputs.dout, span.q_begin * out_width, span.q_len * out_width);
    for (int64_t h = 0; h < problem.nheads_q && span.q_len > 0; ++h) {
      lse_values.fill(inputs.dlse, problem.lse_index(b, h, 0), span.q_len);
    }
    for (int64_t j = 0; j < span.k_len; ++j) {
      for (int64_t h = 0; h < problem.nheads_k; ++h) {
        const int64_t row = (span.k_begin + j) * problem.nheads_k + h;
        values.fill(inputs.k, row * problem.headdim, problem.headdim);
        values.fill(inputs.v, row * problem.headdim_v, problem.headdim_v);
        if (poison == Poison::kNone || any_row_sees(problem, b, h, j, span.q_len)) continue;
        std::fill_n(inputs.k.begin() + row * problem.headdim, problem.headdim, fill);
        std::fill_n(inputs.v.begin() + row * problem.headdim_v, problem.headdim_v, fill);
      }
    }
  }
  return inputs;
}

Inputs constant_inputs(const Problem& problem, double q, double k, double v, double dout) {
  Inputs inputs = random_inputs(problem, 0, Poison::kNone);
  inputs.q.assign(inputs.q.size(), q);
  inputs.k.assign(inputs.k.size(), k);
  inputs.v.assign(inputs.v.size(), v);
  inputs.dout.assign(inputs.dout.size(), dout);
  inputs.dlse.assign(inputs.dlse.size(), 0);
  return inputs;
}

std::string describe(const Problem& problem) {
  std::ostringstream text;
  const auto list = [&](const char* name, const std::vector<int32_t>& values) {
    if (values.empty()) return;
    text << ", " << name << " [";
    for (size_t n = 0; n < values.size(); ++n) text << (n ? " " : "") << values[n];
    text << "]";
  };
  if (problem.packed) {
    text << "packed, total_q " << problem.total_q << ", total_k " << problem.total_k;
  } else {
    text << "dense, batch " << problem.batch << ", seqlen_q " << problem.seqlen_q << ", seqlen_k " << problem.seqlen_k;
  }
  text << ", nheads " << problem.nheads_q << "/" << problem.nheads_k << ", headdim " << problem.headdim << "/"
       << problem.headdim_v << ", " << tandem_dtype_name(problem.dtype) << " to "
       << tandem_dtype_name(problem.out_dtype);
  list("cu_seqlens_q", problem.cu_seqlens_q);
  list("cu_seqlens_k", problem.cu_seqlens_k);
  list("seqused_q", problem.seqused_q);
  list("seqused_k", problem.seqused_k);
  if (problem.causal) text << ", causal";
  if (problem.top_left) text << ", top_left";
  if (problem.has_window) text << ", window (" << problem.window_left << ", " << problem.window_right << ")";
  if (problem.attention_chunk) text << ", chunk " << problem.attention_chunk;
  if (problem.lo) text << ", lo";
  if (problem.hi) text << ", hi";
  if (!problem.sink.empty()) text << ", sink";
  if (problem.softcap > 0) text << ", softcap " << problem.softcap;
  if (problem.softmax_scale) text << ", scale " << *problem.softmax_scale;
  if (problem.with_dlse) text << ", dlse";
  text << ", threads " << problem.num_threads;
  return text.str();
}

}  // namespace tandem::optest
