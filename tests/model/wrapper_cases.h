#pragma once

#include <vector>

#include "wrappers/run.h"

namespace tandem::model {

// The cases of tests/gpu/wrappers, run in the model: `got` is its result.
std::vector<sm90::wrappers::NamedCase> model_cases();

}  // namespace tandem::model
