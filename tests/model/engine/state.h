#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/fiber.h"
#include "engine/history.h"
#include "engine/knowledge.h"
#include "engine/op.h"
#include "engine/products.h"
#include "engine/shared_memory.h"
#include "engine/site.h"

// Threads, warps, warpgroups and blocks of a launch under way: data only.
namespace tandem::model {

constexpr int kWarpSize = 32;
constexpr int kWarpgroupSize = 128;
constexpr int kNamedBarriers = 16;
constexpr int kBarrierBytes = 8;

struct Block;
struct Mbarrier;
struct Warp;
struct Warpgroup;

// What a thread that cannot go on waits for.
struct Wait {
  enum class Kind { kNone, kMbarrier, kNamedBarrier, kCollective, kProducts, kStores, kRegisters, kCluster };
  Kind kind = Kind::kNone;
  Op op = Op::kBarrierWait;
  Place place;
  uint32_t number = 0;  // a parity, or registers
  Site site;
};

// Stores and reductions of a thread between two commits.
struct BulkGroup {
  std::vector<std::pair<uint32_t, uint32_t>> reads;  // the shared memory of each operation, from, to
  int reading = 0;                                   // operations that have yet to read their shared memory,
  int writing = 0;                                   // and to write global memory
  bool read_waited = false;
};

// What a thread's ordinary stores have written since its last fence towards the async proxy.
struct SharedWrite {
  Block* block;
  uint32_t address;
  uint32_t bytes;
};

struct Thread {
  Block* block = nullptr;
  Warp* warp = nullptr;
  int rank = 0;
  Fiber fiber;
  bool exited = false;
  Wait wait;
  std::deque<std::shared_ptr<BulkGroup>> bulk_groups;  // committed
  std::shared_ptr<BulkGroup> open_bulk_group;          // null: empty
  ThreadRegisters registers;
  WgmmaCall wgmma_call;
  MmaCall mma_call;
  uint64_t products_waited = 0;  // wgmma groups
  std::vector<SharedWrite> unfenced;
  uint64_t cluster_arrivals = 0;
  View view;
  Knowledge released;                       // at its last fence, by which its atomic operations release
  Knowledge seen;                           // of flags, which the next fence acquires
  bool acquired = false;                    // a flag, since its last fence between the proxies of global memory
  std::vector<Mbarrier*> initialized;       // and not fenced since
  std::map<uint32_t, int64_t> next_phases;  // of mbarriers that are waited for in turn, by address
  uint32_t bulk_committed = 0;              // groups
  Stamp bulk_reads, bulk_writes;            // the parties that count them; none before the first store
  int lane() const { return rank % kWarpSize; }
};

// A call that the threads of a warp make together, while some have yet to come.
struct Collective {
  uint32_t arrived = 0;  // lanes
  Op op = Op::kWarpSync;
  Site site;
  uint64_t generation = 0;
  std::array<uint32_t, kWarpSize> values[2];  // of this generation and the last: slow lanes still read those
};

struct Warp {
  Block* block = nullptr;
  Warpgroup* warpgroup = nullptr;
  int index = 0;
  Thread* threads[kWarpSize] = {};
  int size = 0;           // threads that the launch gave it
  uint32_t runnable = 0;  // lanes
  bool listed = false;    // among the scheduler's
  uint32_t exited = 0;    // lanes
  Collective collective;
  uint64_t products_committed = 0;  // wgmma groups
  uint32_t product_party = 0;       // which counts them
  int registers = 0;                // of each thread
};

struct Warpgroup {
  Block* block = nullptr;
  int index = 0;
  Warp* warps[4] = {};
  uint32_t arrived = 0;  // warps, at a call of the whole warpgroup
  Op op = Op::kWgmma;
  Site site;
  Products products;
};

struct Mbarrier {
  uint32_t arrivals = 0;  // of each phase
  uint32_t pending = 0;
  int64_t bytes = 0;  // still to come
  uint64_t phase = 0;
  uint32_t arrived_warps = 0;  // in this phase
  std::vector<Thread*> waiting;
  uint32_t party = 0;  // counts completed phases
  const Thread* initializer = nullptr;
  Stamp initialized;
  uint32_t fenced = 0;  // the initializer's count at its fence; 0: none
  Clock gathered;       // what those know who have arrived in this phase,
  Knowledge completed;  // and did in the last
};

struct NamedBarrier {
  int expected = 0;  // threads; 0: nobody has come
  int arrived = 0;
  uint32_t arrived_warps = 0;
  std::vector<Warp*> waiting;
  Clock gathered;
};

struct Cluster {
  int threads = 0;
  int arrived = 0;
  uint64_t phase = 0;
  std::vector<Thread*> waiting;
  Clock gathered;
  Knowledge completed;
};

struct Block {
  Block(uint32_t shared_first, uint32_t shared_bytes) : shared(shared_first, shared_bytes) {}
  int index = 0;
  int cluster_rank = 0;
  Cluster* cluster = nullptr;
  std::vector<Block*> peers;  // the cluster's blocks, by rank
  SharedMemory shared;
  History history;                        // of shared memory
  std::map<uint32_t, Mbarrier> barriers;  // by address
  NamedBarrier named[kNamedBarriers];
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Warpgroup>> warpgroups;
  std::vector<std::shared_ptr<BulkGroup>> unread_groups;  // whose issuer has not waited for their reads
  int live_threads = 0;
  int spare_registers = 0;  // that setmaxnreg has given up
  int loads_in_flight = 0;  // into this block's shared memory
  bool dependent = false;   // of a grid that may begin before the last one has ended
};

}  // namespace tandem::model
