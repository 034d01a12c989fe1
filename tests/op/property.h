#pragma once

#include <cstdint>
#include <string>

#include "random_problem.h"
#include "target.h"

namespace tandem::optest {

// Runs case n of a seed on the target: forward, backward if it has one, and for every fourth case the bits [7, 12].
// Empty, or what is wrong, with a description of the problem.
std::string check_random_case(const Target& target, Domain domain, uint64_t seed, uint64_t n);

}  // namespace tandem::optest
