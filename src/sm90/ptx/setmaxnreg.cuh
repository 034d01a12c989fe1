#pragma once

#include "sm90/ptx/device.cuh"

// setmaxnreg (8.0, sm_90a): moves registers between warpgroups. All threads of a warpgroup call it once, first thing in
// their role's branch of the one if/else over roles; the kernel has launch bounds. kRegisters per thread, a multiple of
// 8 from 24 to 256. The sum over the block's threads must not exceed what it was launched with: inc waits until others
// have given up enough. PTX: Miscellaneous Instructions: setmaxnreg.
namespace tandem::sm90::ptx {

template <int kRegisters>
TANDEM_DEVICE void setmaxnreg_decrease() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
TANDEM_DEVICE void setmaxnreg_increase() {
  static_assert(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tandem::sm90::ptx
