#pragma once

#include <string>

namespace tandem {

// "AVX3, 16 lanes of fp32": the instruction set that calls run on.
std::string simd_description();

}  // namespace tandem
