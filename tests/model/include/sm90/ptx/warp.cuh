#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/math.cuh"

namespace tandem::sm90::ptx {

inline uint32_t shuffle_xor(uint32_t value, int mask, Site site = Site::here()) {
  return model::shuffle(value, lane_index() ^ mask, site);
}
inline float shuffle_xor(float value, int mask, Site site = Site::here()) {
  return bits_to_float(model::shuffle(float_to_bits(value), lane_index() ^ mask, site));
}
inline uint32_t shuffle_index(uint32_t value, int source, Site site = Site::here()) {
  return model::shuffle(value, source, site);
}
inline float shuffle_index(float value, int source, Site site = Site::here()) {
  return bits_to_float(model::shuffle(float_to_bits(value), source, site));
}
inline bool any_sync(bool predicate, Site site = Site::here()) {
  return model::ballot(predicate, site) != 0;
}
inline bool all_sync(bool predicate, Site site = Site::here()) {
  return model::ballot(!predicate, site) == 0;
}
inline uint32_t ballot_sync(bool predicate, Site site = Site::here()) {
  return model::ballot(predicate, site);
}
inline void warp_sync(Site site = Site::here()) {
  model::warp_sync(site);
}

}  // namespace tandem::sm90::ptx
