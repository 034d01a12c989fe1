#pragma once

#include <functional>
#include <vector>

#include "problem.h"

// Attention problems for the model, whatever the kernel.
namespace tandem::model {

// Sequences of these lengths with rows between, before and after them that belong to none.
optest::Problem packed_with_gaps(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k,
                                 int64_t nheads, int64_t headdim, int32_t dtype);

// Row intervals of every head and batch entry: row i sees keys [lo, hi), as `interval` says of (head, i).
struct Interval {
  int32_t lo, hi;
};
void set_intervals(optest::Problem& problem, const std::function<Interval(int64_t head, int64_t row)>& interval);

}  // namespace tandem::model
