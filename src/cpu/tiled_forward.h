#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem {

uint64_t tiled_forward_workspace_bytes(const AttentionProblem& problem);
void run_tiled_forward(const AttentionProblem& problem);

}  // namespace tandem
