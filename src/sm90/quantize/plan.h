#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/status.h"
#include "sm90/quantize/params.h"
#include "sm90/quantize/tiles.h"

namespace tandem::sm90 {

enum class QuantizeKernel {
  kNarrow,      // takes everything
  kPlain,       // rows as they are
  kTransposed,  // V^T in slots
  kRotated,     // rotation
  kTurned,      // rotary embedding, maybe rotation
};

// How to launch a quantisation: up to three grids, each a dependent of the one before. Host arithmetic only.
struct QuantizePlan {
  int64_t prepare_blocks = 0;  // 0: there is nothing to prepare
  PrepareQuantizeParams prepare;

  QuantizeKernel kernel = QuantizeKernel::kNarrow;
  int tiles_row = 0;  // of kQuantizeTiles; not of the narrow kernel
  DType dtype = DType::kNone;
  int threads = 0;
  uint32_t smem_bytes = 0;
  int64_t largest_blocks = 0;  // of a grid that finds scales which blocks share; 0: none
  int64_t blocks = 0;          // of the grid that rounds; 0: there are no rows
  QuantizeParams params;       // of the latter; the other differs in its pass
};

// Ok, or in words why the kernels cannot run this problem. Reads no data; pointers may be null.
Status quantize_supports(const QuantizeProblem& problem);
Workspace quantize_workspace(const QuantizeProblem& problem);

// Of a supported problem. Takes the workspace to be there.
QuantizePlan plan_quantize(const QuantizeProblem& problem);

}  // namespace tandem::sm90
