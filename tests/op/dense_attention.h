#pragma once

#include "problem.h"

// Attention from the textbook, with the mask as an explicit boolean matrix and the softmax over whole rows: the tests'
// own oracle, and, with rounding, the "plain" attention whose error the contract's tolerance is made of [16].
namespace tandem::optest {

constexpr int kSumOrders = 6;

// Element types that S, P and O are rounded to; TANDEM_DTYPE_NONE leaves them as they are. `lse`: the type that LSE is
// stored in, off by `lse_ulps` units in its last place, from which the backward takes P = exp(S - LSE) again;
// TANDEM_DTYPE_NONE: P is the forward's. `order`: one of kSumOrders orders of every sum over keys, rows or columns.
// delta is summed in the next one: dP, which it is subtracted from, is another kernel's sum. `p_unit`: what the largest
// P of a row is multiplied by before the forward rounds it; 0: P is normalised first. `stored`: with a p_unit, the
// values that the inputs are stored as, of which the fp8 tensor cores then make q.k and P V (tensor_core_sum.h); null:
// no such sums. `score_gradients`: what dS is rounded to, which is then made of P as it was before it was rounded.
// `reference`: with a p_unit, the number of the score that it is the P of, counted from the largest, 1; 0: the largest,
// or the sink's.
struct Rounding {
  int32_t scores = TANDEM_DTYPE_NONE;
  int32_t probabilities = TANDEM_DTYPE_NONE;
  int32_t out = TANDEM_DTYPE_NONE;
  int32_t lse = TANDEM_DTYPE_NONE;
  int lse_ulps = 0;
  int order = 0;
  double p_unit = 0;
  const Inputs* stored = nullptr;
  int32_t score_gradients = TANDEM_DTYPE_NONE;
  int reference = 0;
};

// Forward, and with `gradients` backward too, computed in Real (float, double or long double).
template <typename Real>
Results dense_attention(const Problem& problem, const Inputs& inputs, bool gradients, const Rounding& rounding = {});

extern template Results dense_attention<float>(const Problem&, const Inputs&, bool, const Rounding&);
extern template Results dense_attention<double>(const Problem&, const Inputs&, bool, const Rounding&);
extern template Results dense_attention<long double>(const Problem&, const Inputs&, bool, const Rounding&);

}  // namespace tandem::optest
