#pragma once

#include <cstdint>

#include "problem.h"

namespace tandem::optest {

struct RandomCase {
  Problem problem;
  Inputs inputs;
};

// What a backend takes. kTensorCores: 16-bit types, head dims that are multiples of 8, bases and strides of 16 bytes or
// more, results in the type of the inputs; lengths are such that there are several tiles;
// kManyTiles: longer ones.
// kFp8: e4m3 with scales, the forward only.
enum class Domain { kCpu, kTensorCores, kManyTiles, kFp8 };

// Case number `index` of the stream `seed`: any combination of what the domain allows, of modest size.
RandomCase random_case(uint64_t seed, uint64_t index, Domain domain = Domain::kCpu);

// As case number `index` of kManyTiles, for whoever makes the inputs otherwise.
Problem random_problem_of_many_tiles(uint64_t seed, uint64_t index);

// What random_case says about layouts, for a failure's report.
std::string describe_layouts(const Problem& problem);

}  // namespace tandem::optest
