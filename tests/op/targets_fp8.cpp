// The suites in e4m3. The backend of the CPU takes any head dims; a GPU's instances have these.

#include "device.h"
#include "target.h"

namespace tandem::optest {

std::unique_ptr<Device> open_device(int32_t) {
  return nullptr;
}

std::vector<Target> targets() {
  Target in_slots = {"tiled_e4m3_64_slots", TANDEM_BACKEND_TILED, false, TANDEM_E4M3, 64, 64};
  in_slots.v_in_slots = true;
  return {{"tiled_e4m3_64", TANDEM_BACKEND_TILED, false, TANDEM_E4M3, 64, 64},
          {"tiled_e4m3_96_112", TANDEM_BACKEND_TILED, false, TANDEM_E4M3, 96, 112},
          in_slots};
}

// The quantiser is tested with the other types.
std::vector<Target> quantize_targets() {
  return {};
}

}  // namespace tandem::optest
