#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

inline void launch_dependent_grid(Site site = Site::here()) {
  model::launch_dependent_grid(site);
}
inline void wait_for_previous_grid(Site site = Site::here()) {
  model::wait_for_previous_grid(site);
}

}  // namespace tandem::sm90::ptx
