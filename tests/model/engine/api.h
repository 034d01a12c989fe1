#pragma once

#include <cstdint>

#include "engine/operand.h"
#include "engine/site.h"
#include "sm90/ptx/tensor_map.h"

// What the headers under include/sm90/ptx call: each function is an instruction, carried out for the calling thread of
// the machine that runs. What it does is in the product's header of the same name, and in the PTX ISA.
namespace tandem::model {

int thread_rank();
int block_index();
int grid_size();
int warp_index(Site site);
bool elect_one(Site site);
void trap(Site site);
uint32_t shared_base();

void mbarrier_init(uint32_t address, uint32_t arrivals, Site site);
void fence_mbarrier_init(Site site);
void mbarrier_arrive(uint32_t address, bool predicate, Site site);
void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes, Site site);
void mbarrier_arrive_remote(uint32_t address, uint32_t rank, Site site);
void mbarrier_wait(uint32_t address, uint32_t parity, Site site);
bool mbarrier_test(uint32_t address, uint32_t parity, Site site);

void block_sync(Site site);
void named_barrier_sync(int id, int threads, Site site);
void named_barrier_arrive(int id, int threads, Site site);
void cluster_arrive(Site site);
void cluster_wait(Site site);
void set_max_registers(int registers, bool increase, Site site);

struct Coordinates {
  int rank;
  int at[5];
};
void prefetch_tensor_map(const sm90::ptx::TensorMap& map, Site site);
// `blocks`: bits of the cluster's blocks that get the box; 0: this block, without multicast.
void tma_load(uint32_t smem, const sm90::ptx::TensorMap& map, uint32_t barrier, uint16_t blocks, Coordinates corner,
              Site site);
void tma_store(const sm90::ptx::TensorMap& map, uint32_t smem, Coordinates corner, Site site);
void bulk_load(uint32_t smem, const void* gmem, uint32_t bytes, uint32_t barrier, Site site);
void bulk_store(void* gmem, uint32_t smem, uint32_t bytes, Site site);
void bulk_reduce_add_f32(float* gmem, uint32_t smem, uint32_t bytes, Site site);
void bulk_commit(Site site);
void bulk_wait(int pending, bool read_only, Site site);

void fence(Site site);
void fence_proxy_async(bool global, Site site);  // else of shared memory only
void launch_dependent_grid(Site site);
void wait_for_previous_grid(Site site);

// d: n / 2 registers; fragment: 4, or null where A is in shared memory.
void wgmma(WgmmaShape shape, float* d, const uint32_t* fragment, uint64_t descriptor_a, uint64_t descriptor_b,
           bool accumulate, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(int pending, Site site);
// Reports where `bits` are what wgmma's registers hold before the wait.
void check_not_held(uint32_t bits, Site site);

uint32_t shuffle(uint32_t value, int source_lane, Site site);
uint32_t ballot(bool predicate, Site site);
void warp_sync(Site site);
void ldmatrix(uint32_t (&registers)[4], uint32_t address, bool transposed, Site site);
void stmatrix(uint32_t address, const uint32_t (&registers)[4], bool transposed, Site site);
void mma(ElementType element, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site);

void load_shared(void* value, uint32_t address, uint32_t bytes, Site site);
void store_shared(uint32_t address, const void* value, uint32_t bytes, Site site);
void load_global(void* value, const void* pointer, uint32_t bytes, Site site);
void store_global(void* pointer, const void* value, uint32_t bytes, Site site);
uint32_t atomic_add(uint32_t* pointer, uint32_t value, Site site);
void reduce_add_release(uint32_t* pointer, uint32_t value, Site site);
void reduce_max(uint32_t* pointer, uint32_t value, Site site);
void reduce_add(float* pointer, float value, Site site);
uint32_t load_acquire(const uint32_t* pointer, Site site);
void store_release(uint32_t* pointer, uint32_t value, Site site);

uint32_t cluster_rank();
uint32_t map_shared(uint32_t address, uint32_t rank, Site site);
void store_cluster_shared(uint32_t mapped, uint32_t value, Site site);

float ex2(float x);
float lg2(float x);
float rcp(float x);
float tanh_approx(float x);
float fma(float a, float b, float c);
float mul(float a, float b);
float add(float a, float b);
float max(float a, float b);
float min(float a, float b);
uint32_t pack_bf16x2(float low, float high);
uint32_t pack_f16x2(float low, float high);
uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3);
uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector);
void unpack_e4m3x4(uint32_t& low, uint32_t& high, uint32_t packed);

}  // namespace tandem::model
