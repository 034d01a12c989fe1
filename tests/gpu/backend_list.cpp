// In place of src/api/backend_list.cpp: the programs here run on machines that lack the CPU backends' libraries.
#include "api/backends.h"

namespace tandem {

const BackendList& built_backends() {
  static const BackendList list = {&kSm90Backend};
  return list;
}

}  // namespace tandem
