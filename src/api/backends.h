#pragma once

#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "core/status.h"

namespace tandem {

using BackendList = std::vector<const Backend*>;

// The backends of this library, the preferred one of each device first. (api/backend_list.cpp, which tests replace.)
const BackendList& built_backends();

const char* backend_name(int32_t backend);  // "auto", "tiled"; "unknown backend"

// The backend with this number, if it is built and can run on the device; otherwise why not.
Status find_backend(const BackendList& built, int32_t id, tandem_device device, const Backend** backend);

// The choice for a call: what the caller requests, or else what `variable` (the value of TANDEM_BACKEND; may be NULL)
// names, or else the first that can run on the device. It does not depend on the problem, so a backend that lacks a
// feature refuses; nothing falls back to a slower one in silence. `argument` is what messages call the request.
Status select_backend(const BackendList& built, const char* argument, int32_t requested, const char* variable,
                      tandem_device device, const Backend** backend);

}  // namespace tandem
