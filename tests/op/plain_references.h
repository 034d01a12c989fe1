#pragma once

#include <cmath>

#ifdef __CUDACC__
#define TANDEM_OPTEST_HD __host__ __device__
#else
#define TANDEM_OPTEST_HD
#endif

// What P may be relative to when it is rounded to a 16-bit type, in the plain attention that gradients are compared
// with [16]: as in an online softmax, to the largest score of the row so far, which keeps P below 2^15.
namespace tandem::optest {

constexpr int kPlainReferences = 3;  // the row's largest scores

TANDEM_OPTEST_HD inline bool may_be_reference(double score, double largest) {
  return largest - score < 15 * 0.69314718055994531;
}

}  // namespace tandem::optest
