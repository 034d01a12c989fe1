#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

inline uint32_t cluster_rank() {
  return model::cluster_rank();
}
inline void cluster_arrive(Site site = Site::here()) {
  model::cluster_arrive(site);
}
inline void cluster_wait(Site site = Site::here()) {
  model::cluster_wait(site);
}
inline uint32_t map_shared(uint32_t address, uint32_t rank, Site site = Site::here()) {
  return model::map_shared(address, rank, site);
}
inline void store_cluster_shared(uint32_t mapped, uint32_t value, Site site = Site::here()) {
  model::store_cluster_shared(mapped, value, site);
}

}  // namespace tandem::sm90::ptx
