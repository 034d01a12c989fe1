#include "fp8_scales.h"

#include <algorithm>

#include "fill.h"

namespace tandem::gpu_test {
namespace {

using optest::Problem;
using optest::ScaleSet;

int64_t longest(const Problem& problem, bool of_keys) {
  if (!problem.packed) return of_keys ? problem.seqlen_k : problem.seqlen_q;
  const std::vector<int32_t>& offsets = of_keys ? problem.cu_seqlens_k : problem.cu_seqlens_q;
  int64_t rows = 1;
  for (size_t b = 0; b + 1 < offsets.size(); ++b) rows = std::max<int64_t>(rows, offsets[b + 1] - offsets[b]);
  return rows;
}

// From 1/2 to 3/2; one in nine is negative, one in 31 is 0.
double random_scale(uint64_t random) {
  if (random % 31 == 0) return 0;
  const double value = 0.5 + static_cast<double>(random >> 40) * 0x1p-24;
  return static_cast<float>(random % 9 == 0 ? -value : value);
}

std::optional<ScaleSet> random_scales(const Problem& problem, int64_t heads, bool of_keys, uint64_t seed) {
  const uint64_t kind = hash_of(seed, 0) % 4;
  if (kind == 0) return std::nullopt;
  ScaleSet scales{1, 1, 1, static_cast<int>(kind), {}};
  if (kind > 1) scales.batch = problem.batch;
  if (kind > 1) scales.heads = heads;
  if (kind > 2) scales.blocks = (longest(problem, of_keys) + 127) / 128;
  for (int64_t n = 0; n < scales.batch * scales.heads * scales.blocks; ++n) {
    scales.values.push_back(random_scale(hash_of(seed, static_cast<uint64_t>(n) + 1)));
  }
  return scales;
}

}  // namespace

void vary_fp8(Problem& problem, uint64_t seed) {
  if (problem.dtype != TANDEM_E4M3) return;
  const bool of_key_heads = hash_of(seed, 1) % 2 == 0;
  problem.q_scale = random_scales(problem, of_key_heads ? problem.nheads_k : problem.nheads_q, false, seed * 3);
  problem.k_scale = random_scales(problem, problem.nheads_k, true, seed * 3 + 1);
  problem.v_scale = random_scales(problem, problem.nheads_k, true, seed * 3 + 2);
  problem.out_dtype = hash_of(seed, 2) % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
}

}  // namespace tandem::gpu_test
