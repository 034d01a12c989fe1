// In place of src/api/backend_list.cpp: the GPU's backend and, as the oracle, the reference. The tiled backend's
// libraries are missing on machines that are lent for their GPU. The quantiser, which the library does not offer before
// it has passed here, is one of this program's backend.

#include "api/backends.h"
#include "sm90/cuda_call.h"
#include "sm90/quantize/launch.h"
#include "sm90/quantize/plan.h"

namespace tandem {
namespace {

Status prepare(int32_t device_ordinal) {
  TANDEM_RETURN_IF_ERROR(kSm90Backend.prepare(device_ordinal));
  const sm90::DeviceScope scope(device_ordinal);
  TANDEM_RETURN_IF_ERROR(scope.status());
  return sm90::prepare_quantize();
}

Backend with_quantizer() {
  Backend backend = kSm90Backend;
  backend.prepare = prepare;
  backend.supports_quantize = sm90::quantize_supports;
  backend.workspace_quantize = sm90::quantize_workspace;
  backend.run_quantize = sm90::launch_quantize;
  return backend;
}

}  // namespace

const BackendList& built_backends() {
  static const Backend sm90 = with_quantizer();
  static const BackendList list = {&sm90, &kReferenceBackend};
  return list;
}

}  // namespace tandem
