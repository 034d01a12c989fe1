#pragma once

#include <cstdint>
#include <string>

#include "problem.h"

namespace tandem::optest {

// How a kernel sums products of e4m3 numbers.
enum class Fp8Sums { kInFp32, kByTensorCores };

Fp8Sums fp8_sums_of(int32_t backend);

// Empty if the results are within the contract's tolerance [16] of the oracle's, and exact where it demands that [5,
// 8]; else a sentence. Gradients are compared if the results hold any.
std::string compare_with_oracle(const Problem& problem, const Inputs& inputs, const Results& results,
                                const Results& oracle, Fp8Sums sums = Fp8Sums::kInFp32);

// The oracle of a backend: for the reference, the tests' own dense attention; for all others, the reference in fp64.
Results oracle_for(int32_t backend, const Problem& problem, const Inputs& inputs, bool gradients);

// Runs forward and, with `gradients`, backward, and compares: the whole check in one call. Empty: all is well.
std::string check_problem(const Problem& problem, const Inputs& inputs, int32_t backend, bool gradients = true);

}  // namespace tandem::optest
