#pragma once

#include "sm90/ptx/device.cuh"

namespace tandem::sm90::ptx {

template <typename T>
inline T load_global(const T* pointer, Site site = Site::here()) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  T value = {};
  model::load_global(&value, pointer, sizeof(T), site);
  return value;
}

template <typename T>
inline void store_global(T* pointer, const T& value, Site site = Site::here()) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  model::store_global(pointer, &value, sizeof(T), site);
}

inline uint32_t atomic_add(uint32_t* pointer, uint32_t value, Site site = Site::here()) {
  return model::atomic_add(pointer, value, site);
}
inline void reduce_max(uint32_t* pointer, uint32_t value, Site site = Site::here()) {
  model::reduce_max(pointer, value, site);
}
inline void reduce_add(float* pointer, float value, Site site = Site::here()) {
  model::reduce_add(pointer, value, site);
}
inline uint32_t load_acquire(const uint32_t* pointer, Site site = Site::here()) {
  return model::load_acquire(pointer, site);
}
inline void store_release(uint32_t* pointer, uint32_t value, Site site = Site::here()) {
  model::store_release(pointer, value, site);
}
inline void reduce_add_release(uint32_t* pointer, uint32_t value, Site site = Site::here()) {
  model::reduce_add_release(pointer, value, site);
}

}  // namespace tandem::sm90::ptx
