#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tandem {

uint64_t tiled_quantize_workspace_bytes(const QuantizeProblem& problem);
void run_tiled_quantize(const QuantizeProblem& problem);

}  // namespace tandem
