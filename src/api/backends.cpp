#include "api/backends.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "api/text.h"

namespace tandem {
namespace {

// Indexed by the numbers of tandem.h.
constexpr std::array<const char*, 4> kNames = {"auto", "reference", "tiled", "sm90"};

bool is_known(int32_t id) {
  return id >= 0 && id < static_cast<int32_t>(kNames.size());
}

const char* device_text(int32_t type) {
  return type == TANDEM_CPU ? "TANDEM_CPU" : "TANDEM_CUDA";
}

std::string built_names(const BackendList& built) {
  std::string text;
  for (const Backend* backend : built) text += (text.empty() ? "" : ", ") + std::string(backend->name);
  return text;
}

Status no_backend_for(tandem_device device) {
  return {TANDEM_NO_DEVICE, concat("device.type is ", device_text(device.type),
                                   " but this library was built without a backend for it; build it with CUDA, or use "
                                   "tensors in host memory and TANDEM_CPU")};
}

bool serves_type(const Backend* backend, tandem_device device) {
  return backend->device_type == device.type;
}

Status parse_variable(const std::string& name, int32_t* id) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    return Status::invalid_argument(concat("the environment variable TANDEM_BACKEND is \"", name,
                                           "\"; allowed are auto, reference, tiled and sm90"));
  }
  *id = static_cast<int32_t>(found - kNames.begin());
  return Status::ok();
}

Status first_available(const BackendList& built, tandem_device device, const Backend** backend) {
  Status reason = no_backend_for(device);
  bool is_preferred = true;
  for (const Backend* candidate : built) {
    if (!serves_type(candidate, device)) continue;
    Status available = candidate->available(device.ordinal);
    if (available.is_ok()) {
      *backend = candidate;
      return available;
    }
    if (is_preferred) reason = std::move(available);
    is_preferred = false;
  }
  return reason;
}

}  // namespace

const char* backend_name(int32_t backend) {
  return is_known(backend) ? kNames[static_cast<size_t>(backend)] : "unknown backend";
}

Status find_backend(const BackendList& built, int32_t id, tandem_device device, const Backend** backend) {
  const auto has_id = [&](const Backend* candidate) { return candidate->id == id; };
  const auto found = std::find_if(built.begin(), built.end(), has_id);
  if (found == built.end()) {
    return Status::unsupported(concat("backend ", backend_name(id),
                                      " is not part of this library, which was built with ", built_names(built)));
  }
  if (!serves_type(*found, device)) {
    return Status::unsupported(concat("backend ", backend_name(id), " runs on ", device_text((*found)->device_type),
                                      " but device.type is ", device_text(device.type)));
  }
  TANDEM_RETURN_IF_ERROR((*found)->available(device.ordinal));
  *backend = *found;
  return Status::ok();
}

Status select_backend(const BackendList& built, const char* argument, int32_t requested, const char* variable,
                      tandem_device device, const Backend** backend) {
  if (!is_known(requested)) {
    return Status::invalid_argument(
        concat(argument, " is ", requested, "; allowed are 0 (auto), 1 (reference), 2 (tiled) and 3 (sm90)"));
  }
  int32_t id = requested;
  if (id == TANDEM_BACKEND_AUTO && variable != nullptr && *variable != '\0') {
    TANDEM_RETURN_IF_ERROR(parse_variable(variable, &id));
  }
  if (id == TANDEM_BACKEND_AUTO) return first_available(built, device, backend);
  return find_backend(built, id, device, backend);
}

}  // namespace tandem
