#pragma once

#include "core/status.h"
#include "sm90/ptx/tensor_map.h"
#include "sm90/tensor_map_spec.h"

namespace tandem::sm90 {

// Checks, and writes the hardware's form. Needs the driver: TANDEM_NO_DEVICE where there is none.
Status encode_tensor_map(const TensorMapSpec& spec, ptx::TensorMap* map);

}  // namespace tandem::sm90
