// The backends of the CPU; and, with the limits that a GPU's kernels have, the suites' problems as they run there.

#include "device.h"
#include "target.h"

namespace tandem::optest {

std::unique_ptr<Device> open_device(int32_t) {
  return nullptr;
}

std::vector<Target> targets() {
  return {{"reference", TANDEM_BACKEND_REFERENCE},
          {"tiled", TANDEM_BACKEND_TILED},
          {"tiled_bf16_72", TANDEM_BACKEND_TILED, true, TANDEM_BF16, 72, 72},
          {"tiled_fp16_192_128", TANDEM_BACKEND_TILED, true, TANDEM_FP16, 192, 128}};
}

std::vector<Target> quantize_targets() {
  return {{"reference", TANDEM_BACKEND_REFERENCE}, {"tiled", TANDEM_BACKEND_TILED}};
}

}  // namespace tandem::optest
