#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem {

uint64_t tiled_backward_workspace_bytes(const AttentionProblem& problem);
void run_tiled_backward(const AttentionProblem& problem);

}  // namespace tandem
