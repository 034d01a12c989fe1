#pragma once

#include <cstdint>

#include "problem.h"

namespace tandem::optest {

struct RandomCase {
  Problem problem;
  Inputs inputs;
};

// Case number `index` of the stream `seed`: any combination of what the CPU backends support, of modest size.
RandomCase random_case(uint64_t seed, uint64_t index);

// What random_case says about layouts, for a failure's report.
std::string describe_layouts(const Problem& problem);

}  // namespace tandem::optest
