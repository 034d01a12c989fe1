// The copy engine: loads that complete on an mbarrier, stores and reductions that complete in groups.

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/dtype.h"
#include "engine/access.h"
#include "engine/api.h"
#include "engine/box.h"
#include "engine/mbarrier.h"

namespace tandem::model {
namespace {

constexpr uint32_t kBulkAlignment = 16;

[[noreturn]] void fail(const Caller& caller, ReportKind kind, const std::string& what) {
  Machine::current().fail_by(caller.thread, kind, caller.op, caller.site, what);
}

Caller self_as(Op op, Site site) {
  return {Machine::current().self(), op, site};
}

// What runs later names the thread that has issued it, and knows what that knew.
Caller issued_by(const Thread* thread, Op op, Site site, const std::shared_ptr<const Issue>& issue) {
  return {*thread, op, site, issue.get()};
}

std::shared_ptr<const Issue> issue_by(const Thread& thread, Stamp stamp) {
  return std::make_shared<Issue>(Issue{stamp, 1, {thread.view}});
}

// The parties that count a thread's bulk groups.
void count_bulk_groups(Thread& thread) {
  if (thread.bulk_reads.party != kNoParty) return;
  const uint32_t first = Machine::current().new_parties(2);
  thread.bulk_reads.party = first;
  thread.bulk_writes.party = first + 1;
}

void check_bulk(const Caller& caller, uint32_t smem, const void* gmem, uint32_t bytes) {
  if (bytes == 0 || bytes % kBulkAlignment != 0) {
    fail(caller, ReportKind::kMisaligned, std::to_string(bytes) + " bytes are no positive multiple of 16");
  }
  if (smem % kBulkAlignment != 0) fail(caller, ReportKind::kMisaligned, "the shared address is no multiple of 16");
  if (reinterpret_cast<uintptr_t>(gmem) % kBulkAlignment != 0) {
    fail(caller, ReportKind::kMisaligned, Machine::current().global().describe(gmem) + " is no multiple of 16");
  }
}

// The blocks that a load writes into: those whose bits are set, or the caller's own.
std::vector<Block*> destinations(const Caller& caller, uint16_t blocks) {
  Block* own = caller.thread.block;
  if (blocks == 0) return {own};
  std::vector<Block*> found;
  for (uint32_t rank = 0; rank < 16; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    if (rank >= own->peers.size()) fail(caller, ReportKind::kOutOfBounds, "the cluster has no such block");
    found.push_back(own->peers[rank]);
  }
  return found;
}

struct Load {
  uint32_t smem;
  uint32_t bytes;
  uint32_t barrier;
  uint16_t blocks;
  uint64_t delay;
};

// Bytes land in each block, and count on its barrier, at a later step: `write` moves them.
template <typename Write>
void start_load(const Caller& caller, const Load& load, Write write) {
  Machine& machine = Machine::current();
  const Thread* thread = &caller.thread;
  const Op op = caller.op;
  const Site site = caller.site;
  machine.record(*thread, op, Place::shared(load.smem), Moment::kBegin);
  for (Block* block : destinations(caller, load.blocks)) {
    const Mbarrier& barrier = find_mbarrier(*thread, *block, load.barrier, op, site);
    check_init_fenced(*thread, barrier, load.barrier, op, site);
    const auto issue = issue_by(*thread, {barrier.party, static_cast<uint32_t>(barrier.phase + 1)});
    ++block->loads_in_flight;
    expect_copy(caller, *block, load.smem, load.bytes);
    machine.schedule(machine.step_after(machine.options().copies) + load.delay, [=, &machine] {
      --block->loads_in_flight;
      write(issued_by(thread, op, site, issue), *block);
      machine.record(*thread, Op::kCopyDone, Place::shared(load.smem));
      complete_bytes(*thread, *block, load.barrier, load.bytes, op, site);
    });
  }
  machine.preempt_by_chance();
}

void wake_store_waiters(Thread& thread) {
  if (thread.wait.kind == Wait::Kind::kStores) Machine::current().wake(thread);
}

// Reads shared memory at one later step, and writes global memory at another.
template <typename Read, typename Write>
void start_store(const Caller& caller, uint32_t smem, uint32_t bytes, uint64_t delay, Read read, Write write) {
  Machine& machine = Machine::current();
  Thread* thread = &machine.self();
  const Op op = caller.op;
  const Site site = caller.site;
  machine.record(*thread, op, Place::shared(smem), Moment::kBegin);
  if (thread->open_bulk_group == nullptr) {
    thread->open_bulk_group = std::make_shared<BulkGroup>();
    thread->block->unread_groups.push_back(thread->open_bulk_group);
  }
  const std::shared_ptr<BulkGroup> group = thread->open_bulk_group;
  count_bulk_groups(*thread);
  const uint32_t number = thread->bulk_committed + 1;
  const auto reading = issue_by(*thread, {thread->bulk_reads.party, number});
  const auto writing = issue_by(*thread, {thread->bulk_writes.party, number});
  group->reads.push_back({smem, smem + bytes});
  ++group->reading;
  ++group->writing;
  machine.schedule(machine.step_after(machine.options().copies) + delay, [=, &machine] {
    const std::vector<uint8_t> data = read(issued_by(thread, op, site, reading));
    --group->reading;
    wake_store_waiters(*thread);
    machine.schedule(machine.step_after(machine.options().copies), [=, &machine] {
      write(issued_by(thread, op, site, writing), data);
      --group->writing;
      machine.record(*thread, Op::kStoreDone, Place::shared(smem));
      wake_store_waiters(*thread);
    });
  });
  machine.preempt_by_chance();
}

std::vector<uint8_t> copy_shared(const Caller& caller, uint32_t smem, uint32_t bytes) {
  const uint8_t* first = read_shared_async(caller, *caller.thread.block, smem, bytes);
  return {first, first + bytes};
}

// Whether all but the last `pending` committed groups are done.
bool groups_done(const Thread& thread, int pending, bool read_only) {
  const auto count = static_cast<int>(thread.bulk_groups.size()) - pending;
  for (int i = 0; i < count; ++i) {
    const BulkGroup& group = *thread.bulk_groups[i];
    if (group.reading > 0 || (!read_only && group.writing > 0)) return false;
  }
  return true;
}

// All but the last `pending` groups have read shared memory, or written global memory too.
void learn_of_groups(Thread& thread, int pending, bool read_only) {
  const int64_t done = int64_t{thread.bulk_committed} - pending;
  if (done <= 0 || thread.bulk_reads.party == kNoParty) return;
  const auto count = static_cast<uint32_t>(done);
  Machine::current().learn(thread, {thread.bulk_reads.party, count});
  if (!read_only) Machine::current().learn(thread, {thread.bulk_writes.party, count});
}

}  // namespace

void prefetch_tensor_map(const sm90::ptx::TensorMap& map, Site site) {
  check_map(self_as(Op::kTmaLoad, site), map);
}

void tma_load(uint32_t smem, const sm90::ptx::TensorMap& map, uint32_t barrier, uint16_t blocks, Coordinates corner,
              Site site) {
  const Caller caller = self_as(Op::kTmaLoad, site);
  smem = own_offset(caller, smem);
  barrier = own_offset(caller, barrier);
  const Verdict verdict = Machine::current().judge(Op::kTmaLoad, Place::shared(smem), site);
  corner.at[1] += static_cast<int>(verdict.add);
  const Box box = check_box(caller, map, smem, corner);
  for (int i = 0; i < verdict.times; ++i) {
    start_load(caller, {smem, box.bytes(), barrier, blocks, verdict.delay},
               [box](const Caller& issuer, Block& block) { load_box(issuer, box, block); });
  }
}

void tma_store(const sm90::ptx::TensorMap& map, uint32_t smem, Coordinates corner, Site site) {
  const Caller caller = self_as(Op::kTmaStore, site);
  smem = own_offset(caller, smem);
  const Verdict verdict = Machine::current().judge(Op::kTmaStore, Place::shared(smem), site);
  corner.at[1] += static_cast<int>(verdict.add);
  const Box box = check_box(caller, map, smem, corner);
  check_store_corner(caller, corner);
  for (int i = 0; i < verdict.times; ++i) {
    start_store(
        caller, smem, box.bytes(), verdict.delay, [box](const Caller& issuer) { return gather_box(issuer, box); },
        [box](const Caller& issuer, const std::vector<uint8_t>& data) { store_box(issuer, box, data); });
  }
}

void bulk_load(uint32_t smem, const void* gmem, uint32_t bytes, uint32_t barrier, Site site) {
  const Caller caller = self_as(Op::kBulkLoad, site);
  smem = own_offset(caller, smem);
  barrier = own_offset(caller, barrier);
  const Verdict verdict = Machine::current().judge(Op::kBulkLoad, Place::shared(smem), site);
  const uint32_t moved = bytes + static_cast<uint32_t>(verdict.add);
  check_bulk(caller, smem, gmem, moved);
  for (int i = 0; i < verdict.times; ++i) {
    start_load(caller, {smem, moved, barrier, 0, verdict.delay}, [=](const Caller& issuer, Block& block) {
      const uint8_t* source = read_global(issuer, gmem, moved);
      std::memcpy(write_shared_async(issuer, block, smem, moved), source, moved);
    });
  }
}

void bulk_store(void* gmem, uint32_t smem, uint32_t bytes, Site site) {
  const Caller caller = self_as(Op::kBulkStore, site);
  smem = own_offset(caller, smem);
  const Verdict verdict = Machine::current().judge(Op::kBulkStore, Place::shared(smem), site);
  const uint32_t moved = bytes + static_cast<uint32_t>(verdict.add);
  check_bulk(caller, smem, gmem, moved);
  for (int i = 0; i < verdict.times; ++i) {
    start_store(
        caller, smem, moved, verdict.delay, [=](const Caller& issuer) { return copy_shared(issuer, smem, moved); },
        [=](const Caller& issuer, const std::vector<uint8_t>& data) {
          std::memcpy(write_global(issuer, gmem, moved), data.data(), moved);
        });
  }
}

void bulk_reduce_add_f32(float* gmem, uint32_t smem, uint32_t bytes, Site site) {
  const Caller caller = self_as(Op::kBulkReduce, site);
  smem = own_offset(caller, smem);
  const Verdict verdict = Machine::current().judge(Op::kBulkReduce, Place::shared(smem), site);
  const uint32_t moved = bytes + static_cast<uint32_t>(verdict.add);
  check_bulk(caller, smem, gmem, moved);
  const bool in_order = Machine::current().global().is_summed_in_order(gmem);
  if (in_order && caller.thread.acquired) {
    fail(caller, ReportKind::kMissingProxyFence,
         "the thread has acquired a flag, and has not called fence_proxy_async() since");
  }
  const Atomic atomic = in_order ? Atomic::kNo : Atomic::kYes;
  for (int i = 0; i < verdict.times; ++i) {
    start_store(
        caller, smem, moved, verdict.delay, [=](const Caller& issuer) { return copy_shared(issuer, smem, moved); },
        [=](const Caller& issuer, const std::vector<uint8_t>& data) {
          check_readable(issuer, gmem, moved);
          write_global(issuer, gmem, moved, atomic);
          for (uint32_t element = 0; element < moved / 4; ++element) {
            float addend;
            std::memcpy(&addend, data.data() + 4 * element, sizeof(addend));
            gmem[element] = add(gmem[element], addend);
          }
        });
  }
}

void bulk_commit(Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kBulkCommit, {}, site).times == 0) return;
  Thread& thread = machine.self();
  if (thread.open_bulk_group == nullptr) thread.open_bulk_group = std::make_shared<BulkGroup>();
  thread.bulk_groups.push_back(std::move(thread.open_bulk_group));
  ++thread.bulk_committed;
}

void bulk_wait(int pending, bool read_only, Site site) {
  Machine& machine = Machine::current();
  const Op op = read_only ? Op::kBulkWaitRead : Op::kBulkWait;
  if (machine.judge(op, {}, site).times == 0) return;
  Thread& thread = machine.self();
  machine.record(thread, op, {}, Moment::kBegin);
  while (!groups_done(thread, pending, read_only)) machine.suspend({Wait::Kind::kStores, op, {}, 0, site});
  machine.record(thread, op, {}, Moment::kEnd);
  const auto count = static_cast<int>(thread.bulk_groups.size()) - pending;
  for (int i = 0; i < count; ++i) thread.bulk_groups[i]->read_waited = true;
  learn_of_groups(thread, pending, read_only);
  auto& unread = thread.block->unread_groups;
  unread.erase(std::remove_if(unread.begin(), unread.end(), [](const auto& group) { return group->read_waited; }),
               unread.end());
  const auto finished = [](const BulkGroup& group) { return group.read_waited && group.writing == 0; };
  while (!thread.bulk_groups.empty() && finished(*thread.bulk_groups.front())) thread.bulk_groups.pop_front();
}

// Before a relaxed atomic operation it makes that a release, after one an acquire.
void fence(Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kFence, {}, site).times == 0) return;
  Thread& thread = machine.self();
  machine.learn(thread, thread.seen);
  thread.released = machine.release_by(thread);
}

}  // namespace tandem::model
