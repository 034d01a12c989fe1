#pragma once

#include "core/problem.h"

namespace tandem {

void run_tiled_merge(const MergeProblem& problem);

}  // namespace tandem
