#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

template <int kRegisters>
inline void setmaxnreg_decrease(Site site = Site::here()) {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
  model::set_max_registers(kRegisters, false, site);
}
template <int kRegisters>
inline void setmaxnreg_increase(Site site = Site::here()) {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
  model::set_max_registers(kRegisters, true, site);
}

}  // namespace tandem::sm90::ptx
