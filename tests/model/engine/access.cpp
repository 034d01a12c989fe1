#include "engine/access.h"

#include <cstring>

#include "engine/api.h"
#include "engine/products.h"

namespace tandem::model {
namespace {

[[noreturn]] void fail(const Caller& caller, ReportKind kind, const std::string& what) {
  Machine::current().fail_by(caller.thread, kind, caller.op, caller.site, what);
}

std::string bytes_at(uint32_t bytes, uint32_t address) {
  return std::to_string(bytes) + " bytes at " + Machine::current().names().of(Place::shared(address));
}

std::string bytes_of(const void* pointer, size_t bytes) {
  return std::to_string(bytes) + " bytes at " + Machine::current().global().describe(pointer);
}

// Anybody may read these bytes.
bool nothing_special(const SharedMemory& shared, uint32_t address, uint32_t bytes) {
  return shared.in_bounds(address, bytes) && shared.all(address, bytes, SharedMemory::State::kWritten);
}

void check_shared(const Caller& caller, const Block& block, uint32_t address, uint32_t bytes) {
  if (!block.shared.in_bounds(address, bytes)) {
    fail(caller, ReportKind::kOutOfBounds,
         bytes_at(bytes, address) + ", outside of shared memory, which is " + std::to_string(block.shared.first()) +
             " to " + std::to_string(block.shared.end()));
  }
  if (block.shared.any(address, bytes, SharedMemory::State::kBarrier)) {
    fail(caller, ReportKind::kBarrierMisuse, bytes_at(bytes, address) + " are an mbarrier's");
  }
}

// Of bytes that are in bounds and no mbarrier's.
void check_no_copy(const Caller& caller, const Block& block, uint32_t address, uint32_t bytes) {
  if (!block.shared.any(address, bytes, SharedMemory::State::kArriving)) return;
  fail(caller, ReportKind::kRace, bytes_at(bytes, address) + " of shared memory, to which a copy is under way");
}

// Of a wgmma's A a thread that has waited may write its warp's rows again; whether it writes others' the order shows.
bool is_done_with(const Thread& thread, const Warpgroup& warpgroup, const ProductRead& read) {
  return read.is_a && thread.warp->warpgroup == &warpgroup && thread.products_waited > read.group;
}

// What an asynchronous operation reads stays as it is until those who have issued it have waited for it.
void check_no_reader(const Caller& caller, const Block& block, uint32_t address, uint32_t bytes) {
  const auto overlaps = [&](uint32_t begin, uint32_t end) { return address < end && address + bytes > begin; };
  for (const auto& warpgroup : block.warpgroups) {
    for (const ProductRead& read : warpgroup->products.reads) {
      if (!overlaps(read.begin, read.end) || is_done_with(caller.thread, *warpgroup, read)) continue;
      fail(caller, ReportKind::kRace,
           bytes_at(bytes, address) + " of shared memory, which a wgmma of warpgroup " +
               std::to_string(warpgroup->index) + " at " + where(read.site) +
               " reads; not all its threads have waited for it");
    }
  }
  for (const auto& group : block.unread_groups) {
    for (const auto& [begin, end] : group->reads) {
      if (!overlaps(begin, end)) continue;
      fail(caller, ReportKind::kRace,
           bytes_at(bytes, address) + " of shared memory, which a bulk store reads; nobody has waited for that");
    }
  }
}

void check_read(const Caller& caller, const Block& block, uint32_t address, uint32_t bytes) {
  if (nothing_special(block.shared, address, bytes)) return;
  check_shared(caller, block, address, bytes);
  check_no_copy(caller, block, address, bytes);
  if (block.shared.any(address, bytes, SharedMemory::State::kUnwritten)) {
    fail(caller, ReportKind::kUnwrittenRead, bytes_at(bytes, address) + " of shared memory, which nobody has written");
  }
}

Accessor accessor_of(const Caller& caller, Proxy proxy, Atomic atomic) {
  const bool is_atomic = atomic == Atomic::kYes;
  if (caller.issue == nullptr) {
    const View& view = caller.thread.view;
    return {&caller.thread, caller.op, caller.site, view.self, 1, &view, 1, proxy, is_atomic};
  }
  const Issue& issue = *caller.issue;
  return {&caller.thread,     caller.op,          caller.site, issue.stamp, issue.parties,
          issue.views.data(), issue.views.size(), proxy,       is_atomic};
}

void check_conflict(const Caller& caller, const Conflict& conflict, const std::string& what) {
  if (conflict.earlier == nullptr) return;
  const Access& earlier = *conflict.earlier;
  const std::string deed = std::string(op_name(earlier.op)) + " at " + where(earlier.site) + " by " +
                           who(*earlier.thread, Machine::current().names());
  if (conflict.lacks_fence) {
    fail(caller, ReportKind::kMissingProxyFence,
         what + ", written in " + deed + ", which has not called fence_proxy_async_shared() before it handed it over");
  }
  fail(caller, ReportKind::kRace,
       what + (conflict.wrote ? ", written" : ", read") + " in " + deed + ": no barrier orders that before");
}

void order_shared_read(const Caller& caller, Block& block, uint32_t address, uint32_t bytes, Proxy proxy) {
  const Conflict conflict = block.history.read(address, bytes, accessor_of(caller, proxy, Atomic::kNo));
  if (conflict.earlier != nullptr) check_conflict(caller, conflict, bytes_at(bytes, address) + " of shared memory");
}

void order_shared_write(const Caller& caller, Block& block, uint32_t address, uint32_t bytes, Proxy proxy) {
  const Conflict conflict = block.history.write(address, bytes, accessor_of(caller, proxy, Atomic::kNo));
  if (conflict.earlier != nullptr) check_conflict(caller, conflict, bytes_at(bytes, address) + " of shared memory");
}

bool knows_previous_grid(const Caller& caller) {
  return accessor_of(caller, Proxy::kOrdinary, Atomic::kNo).knows(Machine::current().previous_grid());
}

void check_global(const Caller& caller, const void* pointer, size_t bytes) {
  const GlobalMemory& global = Machine::current().global();
  const std::string what = global.out_of_bounds(pointer, bytes);
  if (!what.empty()) fail(caller, ReportKind::kOutOfBounds, std::to_string(bytes) + " bytes at " + what);
  if (!caller.thread.block->dependent || knows_previous_grid(caller)) return;
  const std::string early = global.written_by_earlier_grid(pointer, bytes);
  if (early.empty()) return;
  fail(caller, ReportKind::kMissingGridWait,
       early + " is the grid's before this one, and no call of wait_for_previous_grid() is ordered before");
}

void check_alignment(const Caller& caller, uint64_t address, uint32_t bytes, const std::string& name) {
  if (address % bytes == 0) return;
  fail(caller, ReportKind::kMisaligned, name + " is not a multiple of " + std::to_string(bytes));
}

// What the thread's access is to become of its address, by the faults.
struct Adjusted {
  int times;
  uint64_t address;
};
Adjusted adjust(Op op, Place place, uint64_t address, Site site) {
  const Verdict verdict = Machine::current().judge(op, place, site);
  return {verdict.times, address + static_cast<uint64_t>(verdict.add)};
}

Caller self_as(Op op, Site site) {
  return {Machine::current().self(), op, site};
}

void check_words_not_held(const void* value, uint32_t bytes, Site site) {
  for (uint32_t i = 0; i + 4 <= bytes; i += 4) {
    uint32_t word;
    std::memcpy(&word, static_cast<const char*>(value) + i, sizeof(word));
    check_not_held(word, site);
  }
}

// The pointer of an atomic operation or a flag on 4 bytes.
uint8_t* atomic_word(const void* pointer, Site site) {
  const Caller caller = self_as(Op::kAtomic, site);
  check_alignment(caller, reinterpret_cast<uintptr_t>(pointer), 4, Machine::current().global().describe(pointer));
  read_global(caller, pointer, 4, Atomic::kYes);
  Machine::current().record(caller.thread, Op::kAtomic, {});
  return write_global(caller, const_cast<void*>(pointer), 4, Atomic::kYes);
}

// What an atomic operation hands on and takes over by the fences around it.
void order_by_fences(const void* pointer) {
  Machine& machine = Machine::current();
  Thread& thread = machine.self();
  Knowledge& flag = machine.global().flag(pointer);
  thread.seen = machine.sums().of(thread.seen, flag);
  flag = machine.sums().of(flag, thread.released);
}

}  // namespace

uint32_t own_offset(const Caller& caller, uint32_t address) {
  const uint32_t rank = address >> kWindowBits;
  const auto own_rank = static_cast<uint32_t>(caller.thread.block->cluster_rank);
  if (rank == own_rank) return address & ((1u << kWindowBits) - 1);
  fail(caller, ReportKind::kOutOfBounds,
       "an address in block " + std::to_string(rank) + " of the cluster, not in its own, " + std::to_string(own_rank));
}

const uint8_t* read_shared(const Caller& caller, Block& block, uint32_t address, uint32_t bytes) {
  check_read(caller, block, address, bytes);
  order_shared_read(caller, block, address, bytes, Proxy::kOrdinary);
  return block.shared.at(address);
}

uint8_t* write_shared(const Caller& caller, Block& block, uint32_t address, uint32_t bytes) {
  check_shared(caller, block, address, bytes);
  check_no_copy(caller, block, address, bytes);
  check_no_reader(caller, block, address, bytes);
  order_shared_write(caller, block, address, bytes, Proxy::kOrdinary);
  block.shared.set_state(address, bytes, SharedMemory::State::kWritten);
  Machine::current().self().unfenced.push_back({&block, address, bytes});
  return block.shared.at(address);
}

const uint8_t* read_shared_async(const Caller& caller, Block& block, uint32_t address, uint32_t bytes) {
  check_read(caller, block, address, bytes);
  order_shared_read(caller, block, address, bytes, Proxy::kAsync);
  return block.shared.at(address);
}

uint8_t* write_shared_async(const Caller& caller, Block& block, uint32_t address, uint32_t bytes) {
  check_shared(caller, block, address, bytes);
  order_shared_write(caller, block, address, bytes, Proxy::kAsync);
  block.shared.set_state(address, bytes, SharedMemory::State::kWritten);
  return block.shared.at(address);
}

// Where a copy may not go is reported when it lands.
void expect_copy(const Caller& caller, Block& block, uint32_t address, uint32_t bytes) {
  using State = SharedMemory::State;
  if (!block.shared.in_bounds(address, bytes) || block.shared.any(address, bytes, State::kBarrier)) return;
  check_no_reader(caller, block, address, bytes);
  block.shared.set_state(address, bytes, State::kArriving);
}

void fence_initialized(Thread& thread) {
  ++thread.view.self.count;
  for (Mbarrier* barrier : thread.initialized) barrier->fenced = thread.view.self.count;
  thread.initialized.clear();
}

void fence_proxy_async(bool global, Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kFenceProxy, {}, site).times == 0) return;
  Thread& thread = machine.self();
  if (global) thread.acquired = false;
  fence_initialized(thread);
  for (const SharedWrite& write : thread.unfenced) {
    write.block->history.fence(write.address, write.bytes, thread.view.self);
  }
  thread.unfenced.clear();
}

void check_readable(const Caller& caller, const void* pointer, size_t bytes) {
  check_global(caller, pointer, bytes);
  const std::string what = Machine::current().global().unwritten(pointer, bytes);
  if (what.empty()) return;
  fail(caller, ReportKind::kUnwrittenRead, std::to_string(bytes) + " bytes, but nobody has written " + what);
}

const uint8_t* read_global(const Caller& caller, const void* pointer, size_t bytes, Atomic atomic) {
  check_readable(caller, pointer, bytes);
  const Conflict conflict =
      Machine::current().global().read(pointer, bytes, accessor_of(caller, Proxy::kOrdinary, atomic));
  if (conflict.earlier != nullptr) check_conflict(caller, conflict, bytes_of(pointer, bytes));
  return static_cast<const uint8_t*>(pointer);
}

uint8_t* write_global(const Caller& caller, void* pointer, size_t bytes, Atomic atomic) {
  check_global(caller, pointer, bytes);
  const Conflict conflict =
      Machine::current().global().write(pointer, bytes, accessor_of(caller, Proxy::kOrdinary, atomic));
  if (conflict.earlier != nullptr) check_conflict(caller, conflict, bytes_of(pointer, bytes));
  Machine::current().global().mark_written(pointer, bytes);
  Machine::current().made_progress();
  return static_cast<uint8_t*>(pointer);
}

void load_shared(void* value, uint32_t address, uint32_t bytes, Site site) {
  const Caller caller = self_as(Op::kLoadShared, site);
  const uint32_t offset = own_offset(caller, address);
  const Adjusted call = adjust(Op::kLoadShared, Place::shared(offset), offset, site);
  if (call.times == 0) return;
  const auto at = static_cast<uint32_t>(call.address);
  check_alignment(caller, at, bytes, Machine::current().names().of(Place::shared(at)));
  std::memcpy(value, read_shared(caller, *caller.thread.block, at, bytes), bytes);
}

void store_shared(uint32_t address, const void* value, uint32_t bytes, Site site) {
  const Caller caller = self_as(Op::kStoreShared, site);
  const uint32_t offset = own_offset(caller, address);
  const Adjusted call = adjust(Op::kStoreShared, Place::shared(offset), offset, site);
  if (call.times == 0) return;
  const auto at = static_cast<uint32_t>(call.address);
  check_words_not_held(value, bytes, site);
  check_alignment(caller, at, bytes, Machine::current().names().of(Place::shared(at)));
  std::memcpy(write_shared(caller, *caller.thread.block, at, bytes), value, bytes);
}

void load_global(void* value, const void* pointer, uint32_t bytes, Site site) {
  const Adjusted call = adjust(Op::kLoadGlobal, {}, reinterpret_cast<uintptr_t>(pointer), site);
  if (call.times == 0) return;
  const Caller caller = self_as(Op::kLoadGlobal, site);
  const auto* at = reinterpret_cast<const void*>(call.address);
  check_alignment(caller, call.address, bytes, Machine::current().global().describe(at));
  std::memcpy(value, read_global(caller, at, bytes), bytes);
}

void store_global(void* pointer, const void* value, uint32_t bytes, Site site) {
  const Adjusted call = adjust(Op::kStoreGlobal, {}, reinterpret_cast<uintptr_t>(pointer), site);
  if (call.times == 0) return;
  const Caller caller = self_as(Op::kStoreGlobal, site);
  auto* at = reinterpret_cast<void*>(call.address);
  check_words_not_held(value, bytes, site);
  check_alignment(caller, call.address, bytes, Machine::current().global().describe(at));
  std::memcpy(write_global(caller, at, bytes), value, bytes);
}

uint32_t atomic_add(uint32_t* pointer, uint32_t value, Site site) {
  const Verdict verdict = Machine::current().judge(Op::kAtomic, {}, site);
  uint8_t* word = atomic_word(pointer, site);
  order_by_fences(pointer);
  uint32_t before;
  std::memcpy(&before, word, sizeof(before));
  const uint32_t after = before + value * static_cast<uint32_t>(verdict.times);
  std::memcpy(word, &after, sizeof(after));
  Machine::current().preempt_by_chance();
  return before;
}

void reduce_add_release(uint32_t* pointer, uint32_t value, Site site) {
  Machine& machine = Machine::current();
  const Knowledge released = machine.release_by(machine.self());
  Knowledge& flag = machine.global().flag(pointer);
  flag = machine.sums().of(flag, released);
  atomic_add(pointer, value, site);
}

void reduce_max(uint32_t* pointer, uint32_t value, Site site) {
  const Verdict verdict = Machine::current().judge(Op::kAtomic, {}, site);
  if (verdict.times == 0) return;
  uint8_t* word = atomic_word(pointer, site);
  order_by_fences(pointer);
  uint32_t before;
  std::memcpy(&before, word, sizeof(before));
  if (before < value) std::memcpy(word, &value, sizeof(value));
  Machine::current().preempt_by_chance();
}

void reduce_add(float* pointer, float value, Site site) {
  uint8_t* word = atomic_word(pointer, site);
  float sum;
  std::memcpy(&sum, word, sizeof(sum));
  sum = add(sum, value);
  std::memcpy(word, &sum, sizeof(sum));
  Machine::current().preempt_by_chance();
}

uint32_t load_acquire(const uint32_t* pointer, Site site) {
  Machine& machine = Machine::current();
  machine.poll(site);
  const Verdict verdict = machine.judge(Op::kLoadAcquire, {}, site);
  const Caller caller = self_as(Op::kLoadAcquire, site);
  uint32_t value;
  std::memcpy(&value, read_global(caller, pointer, sizeof(value), Atomic::kYes), sizeof(value));
  value += static_cast<uint32_t>(verdict.add);
  if (verdict.times == 0) return value;
  machine.learn(machine.self(), machine.global().flag(pointer));
  machine.self().acquired = true;
  return value;
}

void store_release(uint32_t* pointer, uint32_t value, Site site) {
  Machine& machine = Machine::current();
  const Verdict verdict = machine.judge(Op::kStoreRelease, {}, site);
  if (verdict.times == 0) return;
  const Caller caller = self_as(Op::kStoreRelease, site);
  check_alignment(caller, reinterpret_cast<uintptr_t>(pointer), 4, machine.global().describe(pointer));
  value += static_cast<uint32_t>(verdict.add);
  std::memcpy(write_global(caller, pointer, sizeof(value), Atomic::kYes), &value, sizeof(value));
  machine.global().flag(pointer) = machine.release_by(machine.self());
  machine.preempt_by_chance();
}

uint32_t map_shared(uint32_t address, uint32_t rank, Site site) {
  return own_offset(self_as(Op::kStoreShared, site), address) | rank << kWindowBits;
}

uint32_t cluster_rank() {
  return static_cast<uint32_t>(Machine::current().self().block->cluster_rank);
}

void store_cluster_shared(uint32_t mapped, uint32_t value, Site site) {
  const Caller caller = self_as(Op::kStoreShared, site);
  const uint32_t rank = mapped >> kWindowBits;
  const uint32_t address = mapped & ((1u << kWindowBits) - 1);
  const std::vector<Block*>& peers = caller.thread.block->peers;
  if (rank >= peers.size() || peers[rank]->live_threads == 0) {
    fail(caller, ReportKind::kOutOfBounds, "not an address in a block of this cluster that still runs");
  }
  check_alignment(caller, address, sizeof(value), Machine::current().names().of(Place::shared(address)));
  std::memcpy(write_shared(caller, *peers[rank], address, sizeof(value)), &value, sizeof(value));
}

}  // namespace tandem::model
