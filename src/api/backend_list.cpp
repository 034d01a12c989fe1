#include "api/backends.h"

namespace tandem {

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
