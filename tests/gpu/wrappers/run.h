#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "wrappers/case.h"

namespace tandem::sm90::wrappers {

// What a case gave on the GPU, and what it should have.
struct CaseResult {
  Words want;
  Words got;
  std::string error;  // of CUDA; empty: none
};

struct NamedCase {
  std::string name;
  Kind kind;
  double relative;
  double absolute;
  std::function<CaseResult(uint64_t seed)> run;
};

std::vector<NamedCase> gpu_cases();  // wrappers/run.cu

// Empty, or in words where the two differ beyond the case's tolerance. NaNs are all alike, and so are zeros of floats.
std::string difference(const NamedCase& test, const CaseResult& result);

}  // namespace tandem::sm90::wrappers
