// Preloaded before libtandem: the real tandem_forward, with one element of a 32-bit or narrower result made wrong.
// (verify's own reference runs in fp64, so that one stays right.)
#include <dlfcn.h>

#include <cstring>

#include "tandem/tandem.h"

extern "C" __attribute__((visibility("default"))) tandem_status tandem_forward(const tandem_forward_params* params) {
  using Forward = tandem_status (*)(const tandem_forward_params*);
  static const auto real_forward = reinterpret_cast<Forward>(dlsym(RTLD_NEXT, "tandem_forward"));
  const tandem_status status = real_forward(params);
  if (status == TANDEM_OK && params->out.dtype != TANDEM_FP64) std::memset(params->out.data, 0x44, 4);
  return status;
}
