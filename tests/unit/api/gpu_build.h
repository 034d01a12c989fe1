#pragma once

#include <algorithm>

#include "api/backends.h"

namespace tandem {

// Whether this library has the Hopper backend. Whether that can run is the machine's affair.
inline bool has_sm90() {
  const BackendList& built = built_backends();
  return std::any_of(built.begin(), built.end(),
                     [](const Backend* backend) { return backend->id == TANDEM_BACKEND_SM90; });
}

}  // namespace tandem
