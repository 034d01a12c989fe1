#pragma once

#include <cstdint>

#include "core/problem.h"
#include "sm90/backward/postprocess_params.h"

namespace tandem::sm90 {

// How to launch what comes after the backward kernel. Host arithmetic only.
struct PostprocessPlan {
  int tiles_row = 0;  // of kBackwardTiles
  DType dtype = DType::kNone;
  int64_t blocks = 0;  // 0: there is nothing to write
  PostprocessParams params;
};

// As plan_preprocess().
PostprocessPlan plan_postprocess(const AttentionProblem& problem, int tiles_row);

}  // namespace tandem::sm90
