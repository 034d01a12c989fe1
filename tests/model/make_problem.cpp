#include "make_problem.h"

namespace tandem::model {

optest::Problem packed_with_gaps(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k,
                                 int64_t nheads, int64_t headdim, int32_t dtype) {
  // A sequence owns a few rows more than it uses; the buffers begin before the first and end after the last.
  constexpr int32_t kGap = 3;
  optest::Problem problem = optest::packed_problem(lengths_q, lengths_k, nheads, nheads, headdim, dtype);
  problem.seqused_q = lengths_q;
  problem.seqused_k = lengths_k;
  for (size_t i = 0; i < problem.cu_seqlens_q.size(); ++i) {
    const auto gaps = static_cast<int32_t>(i + 1) * kGap;
    problem.cu_seqlens_q[i] += gaps;
    problem.cu_seqlens_k[i] += gaps;
  }
  problem.total_q = problem.cu_seqlens_q.back() + kGap;
  problem.total_k = problem.cu_seqlens_k.back() + kGap;
  return problem;
}

void set_intervals(optest::Problem& problem, const std::function<Interval(int64_t, int64_t)>& interval) {
  optest::Intervals lo, hi;
  lo.per_batch = hi.per_batch = false;
  const int64_t rows = problem.packed ? problem.total_q : problem.seqlen_q;
  for (int64_t head = 0; head < problem.nheads_q; ++head) {
    for (int64_t row = 0; row < rows; ++row) {
      const Interval keys = interval(head, row);
      lo.values.push_back(keys.lo);
      hi.values.push_back(keys.hi);
    }
  }
  problem.lo = lo;
  problem.hi = hi;
}

}  // namespace tandem::model
