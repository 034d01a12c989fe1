#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

constexpr int kMbarrierBytes = 8;

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals, Site site = Site::here()) {
  model::mbarrier_init(barrier, arrivals, site);
}
inline void fence_mbarrier_init(Site site = Site::here()) {
  model::fence_mbarrier_init(site);
}
inline void mbarrier_arrive(uint32_t barrier, Site site = Site::here()) {
  model::mbarrier_arrive(barrier, true, site);
}
inline void mbarrier_arrive_if(uint32_t barrier, bool predicate, Site site = Site::here()) {
  model::mbarrier_arrive(barrier, predicate, site);
}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes, Site site = Site::here()) {
  model::mbarrier_arrive_expect_tx(barrier, bytes, site);
}
inline void mbarrier_arrive_remote(uint32_t barrier, uint32_t cluster_rank, Site site = Site::here()) {
  model::mbarrier_arrive_remote(barrier, cluster_rank, site);
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity, Site site = Site::here()) {
  model::mbarrier_wait(barrier, parity, site);
}
inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity, Site site = Site::here()) {
  model::mbarrier_wait(barrier, parity, site);
}
inline bool mbarrier_test(uint32_t barrier, uint32_t parity, Site site = Site::here()) {
  return model::mbarrier_test(barrier, parity, site);
}

}  // namespace tandem::sm90::ptx
