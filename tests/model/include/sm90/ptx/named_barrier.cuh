#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

inline void block_sync(Site site = Site::here()) {
  model::block_sync(site);
}
inline void named_barrier_sync(int id, int threads, Site site = Site::here()) {
  model::named_barrier_sync(id, threads, site);
}
inline void named_barrier_arrive(int id, int threads, Site site = Site::here()) {
  model::named_barrier_arrive(id, threads, site);
}

}  // namespace tandem::sm90::ptx
