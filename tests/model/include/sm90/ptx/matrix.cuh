#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

inline void ldmatrix_x4(uint32_t (&registers)[4], uint32_t address, Site site = Site::here()) {
  model::ldmatrix(registers, address, false, site);
}
inline void ldmatrix_x4_transposed(uint32_t (&registers)[4], uint32_t address, Site site = Site::here()) {
  model::ldmatrix(registers, address, true, site);
}
inline void stmatrix_x4(uint32_t address, const uint32_t (&registers)[4], Site site = Site::here()) {
  model::stmatrix(address, registers, false, site);
}
inline void stmatrix_x4_transposed(uint32_t address, const uint32_t (&registers)[4], Site site = Site::here()) {
  model::stmatrix(address, registers, true, site);
}

}  // namespace tandem::sm90::ptx
