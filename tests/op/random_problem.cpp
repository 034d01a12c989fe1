#include "random_problem.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "float_types.h"

namespace tandem::optest {
namespace {

class Dice {
 public:
  Dice(uint64_t seed, uint64_t index) : engine_(seed * 0x9e3779b97f4a7c15u + index) { engine_.discard(16); }

  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool percent(int64_t chance) { return between(0, 99) < chance; }
  double real(double low, double high) { return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53; }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return *(choices.begin() + between(0, static_cast<int64_t>(choices.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

// Small lengths, lengths round the edges of likely tiles, and a few larger ones.
int64_t random_length(Dice& dice) {
  const int64_t kind = dice.between(0, 9);
  if (kind == 0) return dice.between(0, 1);
  if (kind <= 5) return dice.between(1, 20);
  if (kind <= 7) return dice.pick<int64_t>({16, 32, 64, 128}) + dice.between(-1, 1);
  return dice.between(21, 150);
}

int64_t random_tile_length(Dice& dice) {
  const int64_t kind = dice.between(0, 9);
  if (kind == 0) return dice.between(0, 1);
  if (kind <= 3) return dice.between(1, 60);
  if (kind <= 7) return dice.pick<int64_t>({64, 80, 96, 112, 128, 176, 192, 256}) + dice.between(-1, 1);
  return dice.between(61, 600);
}

bool on_tensor_cores(Domain domain) {
  return domain == Domain::kTensorCores || domain == Domain::kManyTiles;
}

int64_t random_length(Dice& dice, Domain domain) {
  if (domain == Domain::kCpu) return random_length(dice);
  const int64_t length = random_tile_length(dice);
  return domain == Domain::kManyTiles && dice.percent(50) ? length * dice.between(1, 7) : length;
}

int64_t random_headdim(Dice& dice, Domain domain) {
  if (on_tensor_cores(domain)) {
    return dice.percent(50) ? dice.pick<int64_t>({64, 96, 128, 192, 256}) : 8 * dice.between(1, 32);
  }
  if (dice.percent(70)) return dice.between(1, 40);
  return dice.percent(50) ? dice.pick<int64_t>({48, 64, 80, 96, 128}) : dice.between(41, 256);
}

void choose_types(Dice& dice, Problem& problem, Domain domain) {
  problem.lse_dtype = TANDEM_FP32;
  if (domain == Domain::kFp8) {
    problem.dtype = TANDEM_E4M3;
    problem.out_dtype = dice.pick<int32_t>({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
    return;
  }
  problem.dtype = domain != Domain::kCpu ? dice.pick<int32_t>({TANDEM_BF16, TANDEM_FP16})
                                         : dice.pick<int32_t>({TANDEM_FP32, TANDEM_FP32, TANDEM_FP32, TANDEM_BF16,
                                                               TANDEM_BF16, TANDEM_FP16, TANDEM_FP16, TANDEM_FP64});
  problem.out_dtype = problem.dtype;
  const bool is_16bit = problem.dtype == TANDEM_FP16 || problem.dtype == TANDEM_BF16;
  if (is_16bit && domain == Domain::kCpu && dice.percent(30)) problem.out_dtype = TANDEM_FP32;
  problem.lse_dtype = problem.dtype == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32;
}

std::vector<int32_t> random_offsets(Dice& dice, int64_t batch, int64_t& total, Domain domain) {
  std::vector<int32_t> offsets = {0};
  for (int64_t b = 0; b < batch; ++b) {
    offsets.push_back(offsets.back() + static_cast<int32_t>(random_length(dice, domain)));
  }
  total = offsets.back() + (dice.percent(20) ? dice.between(1, 7) : 0);
  return offsets;
}

std::vector<int32_t> random_used(Dice& dice, const Problem& problem, bool query) {
  std::vector<int32_t> used;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Span span = problem.span(b);
    const int64_t length = query ? span.q_len : span.k_len;
    used.push_back(static_cast<int32_t>(dice.percent(25) ? length : dice.between(0, length)));
  }
  return used;
}

void choose_sizes(Dice& dice, Problem& problem, Domain domain) {
  problem.packed = dice.percent(40);
  problem.nheads_k = dice.between(1, 3);
  problem.nheads_q = problem.nheads_k * dice.pick<int64_t>({1, 1, 2, 3});
  problem.headdim = random_headdim(dice, domain);
  problem.headdim_v = dice.percent(70) ? problem.headdim : random_headdim(dice, domain);
  problem.batch = dice.percent(3) ? 0 : dice.between(1, problem.packed ? 5 : 3);
  if (problem.packed) {
    problem.cu_seqlens_q = random_offsets(dice, problem.batch, problem.total_q, domain);
    problem.cu_seqlens_k = random_offsets(dice, problem.batch, problem.total_k, domain);
  } else {
    problem.seqlen_q = random_length(dice, domain);
    problem.seqlen_k = dice.percent(40) ? problem.seqlen_q : random_length(dice, domain);
  }
  if (problem.batch > 0 && dice.percent(25)) problem.seqused_q = random_used(dice, problem, true);
  if (problem.batch > 0 && dice.percent(25)) problem.seqused_k = random_used(dice, problem, false);
}

int64_t multiplications(const Problem& problem) {
  int64_t pairs = 0;
  for (int64_t b = 0; b < problem.batch; ++b) pairs += problem.span(b).q_len * problem.span(b).k_len;
  return pairs * problem.nheads_q * (problem.headdim + problem.headdim_v);
}

Intervals random_intervals(Dice& dice, const Problem& problem, bool is_lo, Domain domain) {
  Intervals intervals;
  intervals.per_head = dice.percent(50);
  intervals.per_batch = dice.percent(50);
  const int64_t heads = intervals.per_head ? problem.nheads_q : 1;
  const int64_t count =
      problem.packed ? heads * problem.total_q : (intervals.per_batch ? problem.batch : 1) * heads * problem.seqlen_q;
  const int64_t longest = !problem.packed ? problem.seqlen_k : domain != Domain::kCpu ? 300 : 100;
  const int64_t wide = dice.between(0, longest);
  for (int64_t n = 0; n < count; ++n) {
    int64_t value = dice.between(-3, longest + 3);
    if (dice.percent(60)) value = is_lo ? dice.between(0, wide / 4) : longest - dice.between(0, wide / 4);
    if (dice.percent(2)) value = dice.pick<int64_t>({INT32_MIN, INT32_MAX});
    intervals.values.push_back(static_cast<int32_t>(value));
  }
  return intervals;
}

int64_t random_window_side(Dice& dice, Domain domain) {
  if (dice.percent(25)) return -1;
  if (dice.percent(5)) return INT64_MAX;
  return dice.percent(50) ? dice.between(0, 4) : dice.between(0, domain != Domain::kCpu ? 400 : 100);
}

void choose_mask(Dice& dice, Problem& problem, Domain domain) {
  problem.causal = dice.percent(45);
  problem.top_left = dice.percent(20);
  problem.has_window = dice.percent(30);
  if (problem.has_window) {
    problem.window_left = random_window_side(dice, domain);
    problem.window_right = random_window_side(dice, domain);
  }
  if (dice.percent(15))
    problem.attention_chunk = dice.percent(5) ? INT64_MAX : dice.between(1, domain != Domain::kCpu ? 300 : 70);
  const bool has_rows = problem.rows_q() > 0;
  if (has_rows && dice.percent(20)) problem.lo = random_intervals(dice, problem, true, domain);
  if (has_rows && dice.percent(20)) problem.hi = random_intervals(dice, problem, false, domain);
}

void choose_options(Dice& dice, Problem& problem) {
  if (dice.percent(25)) {
    for (int64_t h = 0; h < problem.nheads_q; ++h) {
      problem.sink.push_back(round_to(problem.lse_dtype, dice.real(-4, 4)));
    }
  }
  if (dice.percent(20)) problem.softcap = dice.pick({0.5, 5.0, 30.0});
  if (dice.percent(35)) problem.softmax_scale = dice.pick({0.0, -0.3, 0.1, 0.5, 1.0 / 3});
  problem.with_dlse = dice.percent(30);
  problem.num_threads = static_cast<int32_t>(dice.between(0, 3));
  problem.deterministic = dice.percent(50);
}

std::optional<ScaleSet> random_scales(Dice& dice, const Problem& problem, int64_t nheads, int64_t longest) {
  if (dice.percent(15)) return {};
  ScaleSet scales;
  scales.ndim = static_cast<int>(dice.between(1, 3));
  if (scales.ndim > 1) {
    scales.batch = problem.batch;
    scales.heads = nheads;
  }
  if (scales.ndim > 2) scales.blocks = (longest + 127) / 128 + (problem.packed ? dice.between(0, 2) : 0);
  if (scales.ndim > 2 && problem.packed && scales.blocks == 0) scales.blocks = 1;
  for (int64_t n = 0; n < scales.batch * scales.heads * scales.blocks; ++n) {
    scales.values.push_back(static_cast<float>(dice.real(0.25, 2)));
  }
  return scales;
}

void choose_scales(Dice& dice, Problem& problem) {
  int64_t longest_q = problem.seqlen_q;
  int64_t longest_k = problem.seqlen_k;
  for (int64_t b = 0; problem.packed && b < problem.batch; ++b) {
    longest_q = std::max(longest_q, problem.span(b).q_len);
    longest_k = std::max(longest_k, problem.span(b).k_len);
  }
  problem.q_scale = random_scales(dice, problem, dice.percent(70) ? problem.nheads_q : problem.nheads_k, longest_q);
  problem.k_scale = random_scales(dice, problem, problem.nheads_k, longest_k);
  problem.v_scale = random_scales(dice, problem, problem.nheads_k, longest_k);
  problem.v_transposed = dice.percent(50);
}

// The last axis of a tensor of vectors stays in place; a row tensor's axes may come in any order. Bases and strides are
// multiples of `step` elements.
Layout random_layout(Dice& dice, const Shape& shape, bool is_input, bool last_axis_fixed, int64_t step = 1) {
  Layout layout;
  const int ndim = static_cast<int>(shape.size());
  if (dice.percent(40)) {
    for (int axis = 0; axis < ndim; ++axis) layout.order.push_back(axis);
    for (int n = ndim - (last_axis_fixed ? 2 : 1); n > 0; --n) {
      std::swap(layout.order[static_cast<size_t>(n)], layout.order[static_cast<size_t>(dice.between(0, n))]);
    }
  }
  if (dice.percent(30)) layout.padding = step * dice.between(1, 9);
  if (dice.percent(30)) layout.offset = step * dice.between(1, 7);
  layout.huge_strides_on_ones = dice.percent(20);
  if (is_input && step == 1 && dice.percent(12))
    layout.broadcast.push_back(static_cast<int>(dice.between(0, ndim - 2)));
  if (last_axis_fixed && dice.percent(15)) {
    layout.slices = 3;
    layout.slice = static_cast<int>(dice.between(0, 2));
  }
  return layout;
}

void choose_layouts(Dice& dice, Problem& problem, Domain domain) {
  const int64_t step = on_tensor_cores(domain) ? 8 : 1;
  problem.q_layout = random_layout(dice, problem.q_shape(), true, true, step);
  problem.k_layout = random_layout(dice, problem.k_shape(), true, true, step);
  problem.v_layout = random_layout(dice, problem.v_shape(), true, true, step);
  if (problem.v_transposed) problem.v_layout = random_layout(dice, problem.stored_v_shape(), false, true);
  problem.dout_layout = random_layout(dice, problem.out_shape(), true, true, step);
  problem.out_layout = random_layout(dice, problem.out_shape(), false, true, step);
  problem.gradient_layout = random_layout(dice, problem.q_shape(), false, true, step);
  problem.lse_layout = random_layout(dice, problem.lse_shape(), false, false);
  problem.dlse_layout = random_layout(dice, problem.lse_shape(), true, false);
}

void describe_layout(std::ostringstream& text, const char* name, const Layout& layout) {
  text << "  " << name << ":";
  if (!layout.order.empty()) {
    text << " order";
    for (int axis : layout.order) text << " " << axis;
  }
  if (layout.padding) text << " padding " << layout.padding;
  if (layout.offset) text << " offset " << layout.offset;
  for (int axis : layout.broadcast) text << " broadcast axis " << axis;
  if (layout.huge_strides_on_ones) text << " huge strides on axes of size 1";
  if (layout.slices > 1) text << " slice " << layout.slice << " of " << layout.slices;
  text << "\n";
}

Problem random_problem(Dice& dice, Domain domain) {
  const int64_t most_multiplications = domain == Domain::kCpu           ? 1'000'000
                                       : domain == Domain::kFp8         ? 3'000'000
                                       : domain == Domain::kTensorCores ? 30'000'000
                                                                        : 3'000'000'000;
  Problem problem;
  do {
    problem = {};
    choose_sizes(dice, problem, domain);
  } while (multiplications(problem) > most_multiplications);
  choose_types(dice, problem, domain);
  choose_mask(dice, problem, domain);
  choose_options(dice, problem);
  if (domain == Domain::kFp8) choose_scales(dice, problem);
  choose_layouts(dice, problem, domain);
  return problem;
}

}  // namespace

RandomCase random_case(uint64_t seed, uint64_t index, Domain domain) {
  Dice dice(seed, index);
  RandomCase result;
  result.problem = random_problem(dice, domain);
  const Problem& problem = result.problem;
  const Poison poison = dice.pick({Poison::kNone, Poison::kNan, Poison::kNan, Poison::kInfinity});
  result.inputs = random_inputs(problem, seed + index, poison);
  // Powers of two: no rounding. Not much larger, since the contract's tolerance of LSE is absolute below 1, while a sum
  // of many large terms may come out small.
  const double amplitude =
      problem.softmax_scale || domain == Domain::kFp8 ? 1 : dice.pick({1.0, 1.0, 1.0, 1.0, 4.0, 0.25});
  for (double& q : result.inputs.q) q *= amplitude;
  return result;
}

Problem random_problem_of_many_tiles(uint64_t seed, uint64_t index) {
  Dice dice(seed, index);
  return random_problem(dice, Domain::kManyTiles);
}

std::string describe_layouts(const Problem& problem) {
  std::ostringstream text;
  describe_layout(text, "q", problem.q_layout);
  describe_layout(text, "k", problem.k_layout);
  describe_layout(text, "v", problem.v_layout);
  describe_layout(text, "out", problem.out_layout);
  describe_layout(text, "dout", problem.dout_layout);
  describe_layout(text, "lse", problem.lse_layout);
  describe_layout(text, "dlse", problem.dlse_layout);
  describe_layout(text, "dq, dk, dv", problem.gradient_layout);
  return text.str();
}

}  // namespace tandem::optest
