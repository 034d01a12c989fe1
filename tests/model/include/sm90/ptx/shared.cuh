#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

constexpr uint32_t kDynamicSharedBase = 1024;

inline uint32_t dynamic_shared_base() {
  return model::shared_base();
}
inline void check_dynamic_shared_base(Site site = Site::here()) {
  if (dynamic_shared_base() != kDynamicSharedBase) ptx::trap(site);
}

template <typename T>
inline T load_shared(uint32_t address, Site site = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T value = {};
  model::load_shared(&value, address, sizeof(T), site);
  return value;
}

template <typename T>
inline void store_shared(uint32_t address, const T& value, Site site = Site::here()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  model::store_shared(address, &value, sizeof(T), site);
}

}  // namespace tandem::sm90::ptx
