#pragma once

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/tensor_map.h"

namespace tandem::sm90::ptx {

inline void prefetch_tensor_map(const TensorMap* map, Site site = Site::here()) {
  model::prefetch_tensor_map(*map, site);
}

inline void tma_load_2d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1,
                        Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, 0, {2, {c0, c1}}, site);
}
inline void tma_load_3d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2,
                        Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, 0, {3, {c0, c1, c2}}, site);
}
inline void tma_load_4d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3,
                        Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, 0, {4, {c0, c1, c2, c3}}, site);
}
inline void tma_load_5d(uint32_t smem, const TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3, int c4,
                        Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, 0, {5, {c0, c1, c2, c3, c4}}, site);
}

inline void tma_load_multicast_2d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                  int c1, Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, blocks, {2, {c0, c1}}, site);
}
inline void tma_load_multicast_3d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                  int c1, int c2, Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, blocks, {3, {c0, c1, c2}}, site);
}
inline void tma_load_multicast_4d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                  int c1, int c2, int c3, Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, blocks, {4, {c0, c1, c2, c3}}, site);
}
inline void tma_load_multicast_5d(uint32_t smem, const TensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                  int c1, int c2, int c3, int c4, Site site = Site::here()) {
  model::tma_load(smem, *map, barrier, blocks, {5, {c0, c1, c2, c3, c4}}, site);
}

inline void tma_store_2d(const TensorMap* map, uint32_t smem, int c0, int c1, Site site = Site::here()) {
  model::tma_store(*map, smem, {2, {c0, c1}}, site);
}
inline void tma_store_3d(const TensorMap* map, uint32_t smem, int c0, int c1, int c2, Site site = Site::here()) {
  model::tma_store(*map, smem, {3, {c0, c1, c2}}, site);
}
inline void tma_store_4d(const TensorMap* map, uint32_t smem, int c0, int c1, int c2, int c3,
                         Site site = Site::here()) {
  model::tma_store(*map, smem, {4, {c0, c1, c2, c3}}, site);
}
inline void tma_store_5d(const TensorMap* map, uint32_t smem, int c0, int c1, int c2, int c3, int c4,
                         Site site = Site::here()) {
  model::tma_store(*map, smem, {5, {c0, c1, c2, c3, c4}}, site);
}

inline void bulk_load(uint32_t smem, const void* gmem, uint32_t bytes, uint32_t barrier, Site site = Site::here()) {
  model::bulk_load(smem, gmem, bytes, barrier, site);
}
inline void bulk_store(void* gmem, uint32_t smem, uint32_t bytes, Site site = Site::here()) {
  model::bulk_store(gmem, smem, bytes, site);
}
inline void bulk_reduce_add_f32(float* gmem, uint32_t smem, uint32_t bytes, Site site = Site::here()) {
  model::bulk_reduce_add_f32(gmem, smem, bytes, site);
}
inline void bulk_commit(Site site = Site::here()) {
  model::bulk_commit(site);
}
template <int kPending>
inline void bulk_wait_read(Site site = Site::here()) {
  model::bulk_wait(kPending, true, site);
}
template <int kPending>
inline void bulk_wait(Site site = Site::here()) {
  model::bulk_wait(kPending, false, site);
}

}  // namespace tandem::sm90::ptx
