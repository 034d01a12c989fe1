#include "verify_case.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "float_formats.h"
#include "random.h"

namespace tandem::cli {
namespace {

// ------------------------------------------------------------------------------------------- features of a case

void set_dense(VerifyCase& c, int64_t batch, int64_t seqlen_q, int64_t seqlen_k) {
  c.packed = false;
  c.tail_q = c.tail_k = 0;
  c.dense_seqlen_q = seqlen_q;
  c.dense_seqlen_k = seqlen_k;
  c.seqlens_q.assign(static_cast<size_t>(batch), seqlen_q);
  c.seqlens_k.assign(static_cast<size_t>(batch), seqlen_k);
}

// Mostly short; sometimes longer than any tile.
int64_t draw_seqlen(Random& random) {
  return random.chance(0.15) ? random.integer(100, 300) : random.integer(1, 80);
}

void add_packing(VerifyCase& c, Random& random) {
  c.packed = true;
  for (int64_t& length : c.seqlens_q) length = random.chance(0.1) ? 0 : draw_seqlen(random);
  for (int64_t& length : c.seqlens_k) length = random.chance(0.1) ? 0 : draw_seqlen(random);
  c.tail_q = random.chance(0.3) ? random.integer(1, 9) : 0;
  c.tail_k = random.chance(0.3) ? random.integer(1, 9) : 0;
}

std::vector<int64_t> draw_used(const std::vector<int64_t>& seqlens, Random& random) {
  std::vector<int64_t> used;
  for (const int64_t length : seqlens) used.push_back(random.integer(0, length));
  return used;
}

void add_gaps(VerifyCase& c, Random& random) {
  const int64_t which = random.integer(1, 3);
  if (which & 1) c.used_q = draw_used(c.seqlens_q, random);
  if (which & 2) c.used_k = draw_used(c.seqlens_k, random);
}

void add_window(VerifyCase& c, Random& random) {
  c.has_window = true;
  c.window_left = random.chance(0.2) ? -1 : random.integer(0, 40);
  c.window_right = random.chance(0.2) ? -1 : random.integer(0, 40);
}

void add_intervals(VerifyCase& c, Random& random) {
  const int64_t which = random.integer(1, 3);
  c.lo = which & 1;
  c.hi = which & 2;
  c.intervals_per_head = random.chance(0.5);
}

void add_odd_headdim(VerifyCase& c, Random& random) {
  c.headdim = random.integer(1, random.chance(0.2) ? 256 : 100);
  c.headdim_v = random.chance(0.5) ? c.headdim : random.integer(1, 100);
}

void add_emptiness(VerifyCase& c, Random& random) {
  switch (random.integer(0, 4)) {
    case 0: return set_dense(c, 0, 5, 7);
    case 1: return set_dense(c, 2, 0, 7);
    case 2: return set_dense(c, 2, 5, 0);
    case 3:  // packed, without a row or a key, or both
      add_packing(c, random);
      std::fill(c.seqlens_q.begin(), c.seqlens_q.end(), random.pick({0, 3}));
      std::fill(c.seqlens_k.begin(), c.seqlens_k.end(), random.pick({0, 3}));
      return;
    default: c.used_k.assign(c.seqlens_k.size(), 0); return;
  }
}

void add_softcap(VerifyCase& c, Random& random) {
  c.softcap = random.chance(0.3) ? 0.7 : 1 + 30 * random.uniform();
}

void add_scale(VerifyCase& c, Random& random) {
  c.has_scale = true;
  c.scale = random.chance(0.2) ? 0 : random.normal();
}

void add_fp8(VerifyCase& c, Random& random) {
  c.dtype = random.chance(0.7) ? TANDEM_E4M3 : TANDEM_E5M2;
  c.out_dtype = static_cast<int32_t>(random.pick({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}));
  c.backward = false;
}

struct Group {
  const char* name;
  void (*add)(VerifyCase& c, Random& random);  // forces the group's feature upon a random case
};

const Group kGroups[] = {
    {"plain", [](VerifyCase&, Random&) {}},
    {"causal",
     [](VerifyCase& c, Random& random) {
       c.causal = true;
       c.top_left = random.chance(0.2);
     }},
    {"window", add_window},
    {"chunk", [](VerifyCase& c, Random& random) { c.chunk = random.integer(1, 40); }},
    {"intervals", add_intervals},
    {"gqa", [](VerifyCase& c, Random& random) { c.nheads_q = c.nheads_k * random.integer(2, 5); }},
    {"varlen", add_packing},
    {"gaps", add_gaps},
    {"sink", [](VerifyCase& c, Random&) { c.sink = true; }},
    {"softcap", add_softcap},
    {"scale", add_scale},
    {"headdim", add_odd_headdim},
    {"empty", add_emptiness},
    {"out fp32",
     [](VerifyCase& c, Random& random) {
       c.dtype = random.chance(0.5) ? TANDEM_BF16 : TANDEM_FP16;
       c.out_dtype = TANDEM_FP32;
     }},
    {"fp8", add_fp8},
};

VerifyCase draw_base(Random& random) {
  VerifyCase c;
  c.dtype =
      static_cast<int32_t>(random.pick({TANDEM_FP32, TANDEM_FP32, TANDEM_BF16, TANDEM_BF16, TANDEM_FP16, TANDEM_FP64}));
  c.out_dtype = c.dtype;
  c.nheads_k = random.integer(1, 3);
  c.nheads_q = c.nheads_k * random.pick({1, 1, 2});
  c.headdim = c.headdim_v = random.pick({8, 16, 32, 64});
  set_dense(c, random.integer(1, 3), draw_seqlen(random), draw_seqlen(random));
  c.threads = static_cast<int32_t>(random.integer(0, 3));
  return c;
}

void add_random_features(VerifyCase& c, Random& random) {
  if (random.chance(0.25)) add_packing(c, random);
  if (random.chance(0.15)) add_gaps(c, random);
  c.causal = random.chance(0.25);
  c.top_left = random.chance(0.1);
  if (random.chance(0.1)) add_window(c, random);
  if (random.chance(0.1)) c.chunk = random.integer(1, 40);
  if (random.chance(0.1)) add_intervals(c, random);
  c.sink = random.chance(0.15);
  c.dlse = random.chance(0.3);
  if (random.chance(0.1)) add_softcap(c, random);
}

// --------------------------------------------------------------------------------------------------------- tensors

// The group's feature may have changed the lengths after the used ones were drawn.
void clamp_used(std::vector<int64_t>& used, const std::vector<int64_t>& seqlens) {
  used.resize(used.empty() ? 0 : seqlens.size());
  for (size_t b = 0; b < used.size(); ++b) used[b] = std::min(used[b], seqlens[b]);
}

std::vector<int64_t> tensor_shape(const VerifyCase& c, bool of_q, int64_t headdim) {
  const int64_t nheads = of_q ? c.nheads_q : c.nheads_k;
  if (c.packed) return {of_q ? c.rows_q() : c.rows_k(), nheads, headdim};
  return {c.batch(), of_q ? c.dense_seqlen_q : c.dense_seqlen_k, nheads, headdim};
}

TensorBuffer random_rows(const VerifyCase& c, bool of_q, int64_t headdim, int32_t dtype, Random& random) {
  TensorBuffer tensor(dtype, tensor_shape(c, of_q, headdim));
  tensor.fill(std::numeric_limits<double>::quiet_NaN());
  const int64_t row_elems = headdim * (of_q ? c.nheads_q : c.nheads_k);
  for (int64_t b = 0; b < c.batch(); ++b) {
    const SequenceRows rows = sequence_rows(c, b);
    const int64_t begin = of_q ? rows.q_begin : rows.k_begin;
    const int64_t end = begin + (of_q ? rows.q_len : rows.k_len);
    for (int64_t i = begin * row_elems; i < end * row_elems; ++i) tensor.set(i, random.normal());
  }
  return tensor;
}

TensorBuffer int32_vector(const std::vector<int64_t>& values) {
  TensorBuffer tensor(TANDEM_INT32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), static_cast<double>(values[i]));
  return tensor;
}

TensorBuffer offsets_of(const std::vector<int64_t>& seqlens) {
  std::vector<int64_t> offsets = {0};
  std::partial_sum(seqlens.begin(), seqlens.end(), std::back_inserter(offsets));
  return int32_vector(offsets);
}

TensorBuffer random_interval_ends(const VerifyCase& c, int64_t lowest, int64_t highest, Random& random) {
  const int64_t nheads = c.intervals_per_head ? c.nheads_q : 1;
  std::vector<int64_t> shape = {nheads, c.rows_q()};
  if (!c.packed) shape = {c.batch(), nheads, c.dense_seqlen_q};
  TensorBuffer tensor(TANDEM_INT32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(random.integer(lowest, highest)));
  return tensor;
}

TensorBuffer random_vector(int32_t dtype, const std::vector<int64_t>& shape, Random& random) {
  TensorBuffer tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, random.normal());
  return tensor;
}

}  // namespace

int64_t VerifyCase::rows_q() const {
  return std::accumulate(seqlens_q.begin(), seqlens_q.end(), int64_t{0}) + tail_q;
}

int64_t VerifyCase::rows_k() const {
  return std::accumulate(seqlens_k.begin(), seqlens_k.end(), int64_t{0}) + tail_k;
}

double VerifyCase::softmax_scale() const {
  return has_scale ? scale : 1 / std::sqrt(static_cast<double>(headdim));
}

bool VerifyCase::fp8() const {
  return is_fp8(dtype);
}

int64_t verify_group_count() {
  return static_cast<int64_t>(std::size(kGroups));
}

const char* verify_group_name(int64_t group) {
  return kGroups[group].name;
}

VerifyCase draw_case(uint64_t seed, int64_t index) {
  Random random(Random(seed).bits() ^ static_cast<uint64_t>(index));
  const Group& group = kGroups[index % verify_group_count()];
  VerifyCase c = draw_base(random);
  add_random_features(c, random);
  group.add(c, random);
  clamp_used(c.used_q, c.seqlens_q);
  clamp_used(c.used_k, c.seqlens_k);
  c.seed = seed;
  c.index = index;
  c.group = group.name;
  return c;
}

void adapt_to_gpu(VerifyCase& c) {
  const auto next_multiple = [](int64_t headdim) { return (headdim + 7) / 8 * 8; };
  c.headdim = next_multiple(c.headdim);
  c.headdim_v = next_multiple(c.headdim_v);
  c.backward = false;
  if (c.fp8()) return;
  const bool wide_result = c.out_dtype != c.dtype;
  if (dtype_bytes(c.dtype) != 2) c.dtype = c.index % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  if (!wide_result) c.out_dtype = c.dtype;
}

SequenceRows sequence_rows(const VerifyCase& c, int64_t b) {
  const auto at = static_cast<size_t>(b);
  SequenceRows rows;
  rows.q_begin = std::accumulate(c.seqlens_q.begin(), c.seqlens_q.begin() + b, int64_t{0});
  rows.k_begin = std::accumulate(c.seqlens_k.begin(), c.seqlens_k.begin() + b, int64_t{0});
  rows.q_len = c.used_q.empty() ? c.seqlens_q[at] : c.used_q[at];
  rows.k_len = c.used_k.empty() ? c.seqlens_k[at] : c.used_k[at];
  return rows;
}

int64_t lse_index(const VerifyCase& c, int64_t b, int64_t head, int64_t row) {
  if (c.packed) return head * c.rows_q() + sequence_rows(c, b).q_begin + row;
  return (b * c.nheads_q + head) * c.dense_seqlen_q + row;
}

int64_t interval_index(const VerifyCase& c, int64_t b, int64_t head, int64_t row) {
  if (c.intervals_per_head) return lse_index(c, b, head, row);
  return c.packed ? sequence_rows(c, b).q_begin + row : b * c.dense_seqlen_q + row;
}

CaseInputs make_inputs(const VerifyCase& c) {
  Random random(Random(c.seed).bits() ^ ~static_cast<uint64_t>(c.index));
  const int32_t wide = c.dtype == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32;
  CaseInputs inputs;
  inputs.q = random_rows(c, true, c.headdim, c.dtype, random);
  inputs.k = random_rows(c, false, c.headdim, c.dtype, random);
  inputs.v = random_rows(c, false, c.headdim_v, c.dtype, random);
  if (c.backward) inputs.dout = random_rows(c, true, c.headdim_v, c.out_dtype, random);
  if (c.backward && c.dlse) inputs.dlse = random_vector(wide, lse_shape(inputs.q.shape()), random);
  if (c.sink) inputs.sink = random_vector(wide, {c.nheads_q}, random);
  const int64_t longest_k = c.seqlens_k.empty() ? 0 : *std::max_element(c.seqlens_k.begin(), c.seqlens_k.end());
  if (c.lo) inputs.lo = random_interval_ends(c, -3, longest_k / 2, random);
  if (c.hi) inputs.hi = random_interval_ends(c, longest_k / 4, longest_k + 3, random);
  if (c.fp8()) {
    for (TensorBuffer* factor : {&inputs.q_scale, &inputs.k_scale, &inputs.v_scale}) {
      *factor = TensorBuffer(TANDEM_FP32, {1});
      factor->set(0, 0.5 + random.uniform());
    }
  }
  if (c.packed) inputs.cu_seqlens_q = offsets_of(c.seqlens_q);
  if (c.packed) inputs.cu_seqlens_k = offsets_of(c.seqlens_k);
  if (!c.used_q.empty()) inputs.seqused_q = int32_vector(c.used_q);
  if (!c.used_k.empty()) inputs.seqused_k = int32_vector(c.used_k);
  return inputs;
}

std::string describe(const VerifyCase& c) {
  const auto lengths = [](const std::vector<int64_t>& values) {
    std::string text;
    for (const int64_t value : values) text += (text.empty() ? "" : "+") + std::to_string(value);
    return text;
  };
  std::string text = std::string(tandem_dtype_name(c.dtype)) + (c.packed ? " packed" : " dense");
  text += ", seqlen_q " + lengths(c.seqlens_q) + ", seqlen_k " + lengths(c.seqlens_k);
  if (!c.used_q.empty()) text += ", seqused_q " + lengths(c.used_q);
  if (!c.used_k.empty()) text += ", seqused_k " + lengths(c.used_k);
  text += ", heads " + std::to_string(c.nheads_q) + "/" + std::to_string(c.nheads_k);
  text += ", headdim " + std::to_string(c.headdim) + "/" + std::to_string(c.headdim_v);
  if (c.causal) text += ", causal";
  if (c.top_left) text += ", top-left";
  if (c.has_window) text += ", window " + std::to_string(c.window_left) + "," + std::to_string(c.window_right);
  if (c.chunk > 0) text += ", chunk " + std::to_string(c.chunk);
  if (c.lo) text += ", lo";
  if (c.hi) text += ", hi";
  if (c.sink) text += ", sink";
  if (c.softcap > 0) text += ", softcap " + std::to_string(c.softcap);
  if (c.has_scale) text += ", scale " + std::to_string(c.scale);
  if (c.out_dtype != c.dtype) text += std::string(", out ") + tandem_dtype_name(c.out_dtype);
  return text;
}

}  // namespace tandem::cli
