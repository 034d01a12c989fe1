#pragma once

#include <cstdint>

#include "core/problem.h"
#include "sm90/backward/prepare_params.h"
#include "sm90/backward/preprocess_params.h"

namespace tandem::sm90 {

// How to launch what comes before the backward kernel. Host arithmetic only.
struct PreprocessPlan {
  int tiles_row = 0;  // of kBackwardTiles
  DType dtype = DType::kNone;
  bool packed = false;
  int64_t blocks = 0;
  uint32_t smem_bytes = 0;
  PrepareBackwardParams prepare;  // packed only
  PreprocessParams params;
};

// Of a supported backward problem with query heads; it may be without rows.
PreprocessPlan plan_preprocess(const AttentionProblem& problem, int tiles_row);

}  // namespace tandem::sm90
