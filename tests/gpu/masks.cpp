#include "masks.h"

#include <algorithm>

#include "fill.h"

namespace tandem::gpu_test {
namespace {

using optest::Problem;

void set_window(Problem& problem, int64_t left, int64_t right) {
  problem.has_window = true;
  problem.window_left = left;
  problem.window_right = right;
}

void set_sink(Problem& problem) {
  for (int64_t h = 0; h < problem.nheads_q; ++h) problem.sink.push_back(static_cast<double>(h % 5) - 1.5);
}

}  // namespace

void add_intervals(Problem& problem, bool lo, bool hi, uint64_t seed) {
  const int64_t rows = problem.packed ? problem.total_q : problem.batch * problem.seqlen_q;
  const int64_t row_of_next_entry = problem.packed ? 0 : problem.seqlen_q;
  optest::Intervals lows{true, true, std::vector<int32_t>(static_cast<size_t>(rows * problem.nheads_q))};
  optest::Intervals highs = lows;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const optest::Span span = problem.span(b);
    const int64_t cut = b % 3 == 1 ? span.k_len / 3 : 0;  // no row sees so many keys at each end
    for (int64_t h = 0; h < problem.nheads_q; ++h) {
      for (int64_t i = 0; i < span.q_len; ++i) {
        const uint64_t random = hash_of(seed, static_cast<uint64_t>((b * 1009 + h) * 100003 + i));
        const int64_t keys = std::max<int64_t>(span.k_len - 2 * cut, 1);
        int64_t low = cut + static_cast<int64_t>(random >> 8 & 0xffff) % keys;
        int64_t high = low + static_cast<int64_t>(random >> 24 & 0xffff) % (span.k_len - cut - low + 1);
        switch (random % 8) {
          case 0: low = cut, high = span.k_len - cut; break;
          case 1: high = low; break;
          case 2: low = cut > 0 ? cut : INT32_MIN; break;
          case 3: high = cut > 0 ? span.k_len - cut : INT32_MAX; break;
          default: break;
        }
        const int64_t row = problem.packed ? h * problem.total_q + span.q_begin + i
                                           : (b * problem.nheads_q + h) * row_of_next_entry + i;
        lows.values[static_cast<size_t>(row)] = static_cast<int32_t>(low);
        highs.values[static_cast<size_t>(row)] = static_cast<int32_t>(high);
      }
    }
  }
  if (lo) problem.lo = std::move(lows);
  if (hi) problem.hi = std::move(highs);
}

const std::vector<Variant>& mask_variants() {
  static const std::vector<Variant> variants = {
      {"none", [](Problem&) {}},
      {"causal", [](Problem& p) { p.causal = true; }},
      {"causal, top-left", [](Problem& p) { p.causal = p.top_left = true; }},
      {"window (0, 0)", [](Problem& p) { set_window(p, 0, 0); }},
      {"window (100, 0)", [](Problem& p) { set_window(p, 100, 0); }},
      {"window (-1, 37)", [](Problem& p) { set_window(p, -1, 37); }},
      {"window (200, 70), top-left", [](Problem& p) { set_window(p, 200, 70), p.top_left = true; }},
      {"window (130, 9), causal", [](Problem& p) { set_window(p, 130, 9), p.causal = true; }},
      {"chunks of 96", [](Problem& p) { p.attention_chunk = 96; }},
      {"chunks of 200, causal", [](Problem& p) { p.attention_chunk = 200, p.causal = true; }},
      {"chunks of 64, top-left", [](Problem& p) { p.attention_chunk = 64, p.top_left = true; }},
      {"lo", [](Problem& p) { add_intervals(p, true, false, 1); }},
      {"hi", [](Problem& p) { add_intervals(p, false, true, 2); }},
      {"lo and hi", [](Problem& p) { add_intervals(p, true, true, 3); }},
      {"lo and hi, causal, window (150, -1)",
       [](Problem& p) { add_intervals(p, true, true, 4), p.causal = true, set_window(p, 150, -1); }},
  };
  return variants;
}

const std::vector<Variant>& score_variants() {
  static const std::vector<Variant> variants = {
      {"softcap, causal", [](Problem& p) { p.softcap = 20, p.causal = true; }},
      {"sink, causal", [](Problem& p) { set_sink(p), p.causal = true; }},
      {"sink, lo and hi", [](Problem& p) { set_sink(p), add_intervals(p, true, true, 5); }},
      {"scale 0", [](Problem& p) { p.softmax_scale = 0; }},
      {"scale -0.2, causal", [](Problem& p) { p.softmax_scale = -0.2, p.causal = true; }},
      {"scale -0.2, softcap, sink", [](Problem& p) { p.softmax_scale = -0.2, p.softcap = 5, set_sink(p); }},
      {"no LSE, causal", [](Problem& p) { p.with_lse = false, p.causal = true; }},
  };
  return variants;
}

const std::vector<Variant>& gradient_variants() {
  static const std::vector<Variant> variants = {
      {"dlse", [](Problem& p) { p.with_dlse = true; }},
      {"dlse, sink, causal", [](Problem& p) { p.with_dlse = p.causal = true, set_sink(p); }},
      {"dlse, softcap, window (70, 30)", [](Problem& p) { p.with_dlse = true, p.softcap = 5, set_window(p, 70, 30); }},
      {"deterministic", [](Problem& p) { p.deterministic = true; }},
      {"deterministic, causal, dlse", [](Problem& p) { p.deterministic = p.causal = p.with_dlse = true; }},
      {"deterministic, lo and hi, sink",
       [](Problem& p) { p.deterministic = true, set_sink(p), add_intervals(p, true, true, 6); }},
  };
  return variants;
}

}  // namespace tandem::gpu_test
