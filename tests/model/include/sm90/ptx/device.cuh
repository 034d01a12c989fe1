#pragma once

#include <cstdint>

#include "engine/api.h"

// The names of src/sm90/ptx on the host: the same functions, carried out by the model. The last parameter, which no
// kernel passes, is the place of the call.

#define TANDEM_DEVICE inline
#define TANDEM_KERNEL void
#define TANDEM_LAUNCH_BOUNDS(threads, blocks_per_sm)
#define TANDEM_GRID_CONSTANT
#define TANDEM_UNROLL
#define TANDEM_NO_UNROLL
#define TANDEM_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), false)

namespace tandem::sm90::ptx {

using model::Site;

constexpr int kWarpThreads = 32;
constexpr int kWarpgroupThreads = 128;

inline int thread_rank() {
  return model::thread_rank();
}
inline int thread_rank_anew() {
  return model::thread_rank();
}
inline int lane_index() {
  return model::thread_rank() % kWarpThreads;
}
inline int warp_index(Site site = Site::here()) {
  return model::warp_index(site);
}
inline int warpgroup_index(Site site = Site::here()) {
  return model::warp_index(site) * kWarpThreads / kWarpgroupThreads;
}
inline int block_index() {
  return model::block_index();
}
inline int grid_size() {
  return model::grid_size();
}
inline bool elect_one(Site site = Site::here()) {
  return model::elect_one(site);
}
inline void trap(Site site = Site::here()) {
  model::trap(site);
}

}  // namespace tandem::sm90::ptx
