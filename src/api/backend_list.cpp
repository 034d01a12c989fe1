#include "api/backends.h"

namespace tandem {

#if TANDEM_WITH_CUDA
extern const Backend kSm90Backend;  // sm90/sm90_backend.cpp
#endif

const BackendList& built_backends() {
  static const BackendList list = {
#if TANDEM_WITH_CUDA
      &kSm90Backend,
#endif
      &kTiledBackend,
      &kReferenceBackend,
  };
  return list;
}

}  // namespace tandem
