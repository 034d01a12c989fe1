#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

inline void fence_proxy_async_shared(Site site = Site::here()) {
  model::fence_proxy_async(false, site);
}
inline void fence_proxy_async(Site site = Site::here()) {
  model::fence_proxy_async(true, site);
}
inline void fence_block(Site site = Site::here()) {
  model::fence(site);
}
inline void fence_gpu(Site site = Site::here()) {
  model::fence(site);
}

}  // namespace tandem::sm90::ptx
