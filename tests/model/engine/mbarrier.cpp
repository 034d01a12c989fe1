#include "engine/mbarrier.h"

#include <utility>

#include "engine/access.h"
#include "engine/api.h"

namespace tandem::model {
namespace {

void finish_phase(Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  add(barrier.gathered, {barrier.party, static_cast<uint32_t>(barrier.phase)});
  barrier.completed = std::make_shared<const Clock>(std::exchange(barrier.gathered, {}));
  barrier.pending = barrier.arrivals;
  barrier.arrived_warps = 0;
  for (Thread* thread : barrier.waiting) Machine::current().wake(*thread);
  barrier.waiting.clear();
}

bool has_completed(const Mbarrier& barrier, uint32_t parity) {
  return barrier.phase % 2 != parity;
}

// Where the kernel says that each thread waits for the phases in turn: parities alternate, and nobody is two phases
// behind, where the parity is that of a phase to come. Phase -1 is what the first wait for a free stage asks for.
void check_turn(Thread& thread, uint32_t address, const Mbarrier& barrier, uint32_t parity, Site site) {
  Machine& machine = Machine::current();
  if (!machine.names().in_turn(address)) return;
  int64_t& phase = thread.next_phases.try_emplace(address, parity == 1 ? -1 : 0).first->second;
  const auto fail = [&](const std::string& what) {
    machine.fail_here(ReportKind::kWrongPhase, Op::kBarrierWait, site,
                      machine.names().of(Place::shared(address)) + ", parity " + std::to_string(parity) + ": " + what);
  };
  if (static_cast<uint32_t>(phase & 1) != parity) {
    fail("the thread's last wait was for the same parity, for phase " + std::to_string(phase - 1) +
         ": that phase twice, or one skipped");
  }
  if (static_cast<int64_t>(barrier.phase) > phase + 1) {
    fail("phase " + std::to_string(phase) + " has been over for a whole phase, and the parity is that of phase " +
         std::to_string(phase + 2));
  }
  ++phase;
}

void arrive(Block& block, uint32_t address, uint32_t bytes, Op op, Site site) {
  Machine& machine = Machine::current();
  const Thread& thread = machine.self();
  Mbarrier& barrier = find_mbarrier(thread, block, address, op, site);
  const std::string name = machine.names().of(Place::shared(address));
  if (barrier.pending == 0) {
    machine.fail_here(ReportKind::kOverArrival, op, site,
                      name + " has had all " + std::to_string(barrier.arrivals) + " arrivals of phase " +
                          std::to_string(barrier.phase) + ", which waits for bytes only");
  }
  const uint32_t warp = 1u << thread.warp->index;
  if (machine.names().in_turn(address) && (barrier.arrived_warps & warp) != 0) {
    machine.fail_here(ReportKind::kOverArrival, op, site,
                      "the warp's second arrival at " + name + " in phase " + std::to_string(barrier.phase));
  }
  machine.record(thread, op, Place::shared(address));
  barrier.arrived_warps |= warp;
  machine.release_by(machine.self(), barrier.gathered);
  barrier.bytes += bytes;
  --barrier.pending;
  finish_phase(barrier);
  machine.preempt_by_chance();
}

// The calling thread's, by its address.
uint32_t offset_of(uint32_t address, Op op, Site site) {
  return own_offset({Machine::current().self(), op, site}, address);
}

}  // namespace

Mbarrier& find_mbarrier(const Thread& caller, Block& block, uint32_t address, Op op, Site site) {
  Machine& machine = Machine::current();
  const auto fail = [&](const std::string& what) {
    machine.fail_by(caller, ReportKind::kBarrierMisuse, op, site,
                    machine.names().of(Place::shared(address)) + " of block " + std::to_string(block.index) + what);
  };
  const auto found = block.barriers.find(address);
  if (found == block.barriers.end()) fail(" is not an initialized mbarrier");
  const Mbarrier& barrier = found->second;
  if (!caller.view.covers(barrier.initialized)) {
    fail(" has been initialized by " + who(*barrier.initializer, machine.names()) + ": no barrier orders that before");
  }
  return found->second;
}

void check_init_fenced(const Thread& caller, const Mbarrier& barrier, uint32_t address, Op op, Site site) {
  if (barrier.fenced != 0 && caller.view.covers({barrier.initialized.party, barrier.fenced})) return;
  Machine& machine = Machine::current();
  machine.fail_by(
      caller, ReportKind::kMissingProxyFence, op, site,
      machine.names().of(Place::shared(address)) + ", initialized by " + who(*barrier.initializer, machine.names()) +
          ", which has called neither fence_mbarrier_init() nor fence_proxy_async() before it handed it over");
}

void complete_bytes(const Thread& caller, Block& block, uint32_t address, uint32_t bytes, Op op, Site site) {
  Machine& machine = Machine::current();
  Mbarrier& barrier = find_mbarrier(caller, block, address, op, site);
  barrier.bytes -= bytes;
  // Another block's copy may land before this one has announced the bytes, as long as the phase cannot end.
  const bool may_be_early = block.peers.size() > 1 && barrier.pending > 0;
  if (barrier.bytes < 0 && !may_be_early) {
    machine.fail_by(caller, ReportKind::kWrongByteCount, op, site,
                    machine.names().of(Place::shared(address)) + " gets " + std::to_string(-barrier.bytes) +
                        " bytes more in phase " + std::to_string(barrier.phase) + " than were announced");
  }
  finish_phase(barrier);
}

void mbarrier_init(uint32_t address, uint32_t arrivals, Site site) {
  Machine& machine = Machine::current();
  address = offset_of(address, Op::kBarrierInit, site);
  const Verdict verdict = machine.judge(Op::kBarrierInit, Place::shared(address), site);
  if (verdict.times == 0) return;
  arrivals += static_cast<uint32_t>(verdict.add);
  Block& block = *machine.self().block;
  const auto fail = [&](ReportKind kind, const std::string& what) {
    machine.fail_here(kind, Op::kBarrierInit, site, machine.names().of(Place::shared(address)) + " " + what);
  };
  if (address % kBarrierBytes != 0) fail(ReportKind::kMisaligned, "is not a multiple of 8");
  if (!block.shared.in_bounds(address, kBarrierBytes)) fail(ReportKind::kOutOfBounds, "is not in shared memory");
  if (arrivals == 0 || arrivals >= 1u << 20) fail(ReportKind::kBarrierMisuse, "takes 1 to 2^20 - 1 arrivals");
  if (block.barriers.count(address) != 0) fail(ReportKind::kBarrierMisuse, "is initialized already");
  block.shared.set_state(address, kBarrierBytes, SharedMemory::State::kBarrier);
  Mbarrier& barrier = block.barriers[address];
  barrier.arrivals = barrier.pending = arrivals;
  barrier.party = machine.new_parties(1);
  Thread& thread = machine.self();
  barrier.initializer = &thread;
  barrier.initialized = thread.view.self;
  thread.initialized.push_back(&barrier);
  machine.record(machine.self(), Op::kBarrierInit, Place::shared(address));
}

void fence_mbarrier_init(Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kFenceBarrierInit, {}, site).times == 0) return;
  fence_initialized(machine.self());
}

void mbarrier_arrive(uint32_t address, bool predicate, Site site) {
  if (!predicate) return;
  Machine& machine = Machine::current();
  address = offset_of(address, Op::kBarrierArrive, site);
  const Verdict verdict = machine.judge(Op::kBarrierArrive, Place::shared(address), site);
  address += static_cast<uint32_t>(verdict.add);
  for (int i = 0; i < verdict.times; ++i) arrive(*machine.self().block, address, 0, Op::kBarrierArrive, site);
}

void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes, Site site) {
  Machine& machine = Machine::current();
  address = offset_of(address, Op::kBarrierExpect, site);
  const Verdict verdict = machine.judge(Op::kBarrierExpect, Place::shared(address), site);
  bytes += static_cast<uint32_t>(verdict.add);
  for (int i = 0; i < verdict.times; ++i) arrive(*machine.self().block, address, bytes, Op::kBarrierExpect, site);
}

void mbarrier_arrive_remote(uint32_t address, uint32_t rank, Site site) {
  Machine& machine = Machine::current();
  address = offset_of(address, Op::kBarrierArrive, site);
  Block& own = *machine.self().block;
  const Verdict verdict = machine.judge(Op::kBarrierArrive, Place::shared(address), site);
  if (verdict.times == 0) return;
  if (rank >= own.peers.size() || own.peers[rank]->live_threads == 0) {
    machine.fail_here(ReportKind::kOutOfBounds, Op::kBarrierArrive, site,
                      "block " + std::to_string(rank) + " of the cluster does not exist, or has ended");
  }
  for (int i = 0; i < verdict.times; ++i) arrive(*own.peers[rank], address, 0, Op::kBarrierArrive, site);
}

void mbarrier_wait(uint32_t address, uint32_t parity, Site site) {
  Machine& machine = Machine::current();
  address = offset_of(address, Op::kBarrierWait, site);
  const Place place = Place::shared(address);
  const Verdict verdict = machine.judge(Op::kBarrierWait, place, site);
  if (verdict.times == 0) return;
  parity = (parity + static_cast<uint32_t>(verdict.add)) % 2;
  Thread& thread = machine.self();
  Mbarrier& barrier = find_mbarrier(thread, *thread.block, address, Op::kBarrierWait, site);
  check_turn(thread, address, barrier, parity, site);
  if (!has_completed(barrier, parity)) {
    machine.record(thread, Op::kBarrierWait, place, Moment::kBegin);
    while (!has_completed(barrier, parity)) {
      barrier.waiting.push_back(&thread);
      machine.suspend({Wait::Kind::kMbarrier, Op::kBarrierWait, place, parity, site});
    }
    machine.record(thread, Op::kBarrierWait, place, Moment::kEnd);
  }
  machine.learn(thread, barrier.completed);
  machine.made_progress();
}

bool mbarrier_test(uint32_t address, uint32_t parity, Site site) {
  Machine& machine = Machine::current();
  address = offset_of(address, Op::kBarrierTest, site);
  Thread& thread = machine.self();
  machine.judge(Op::kBarrierTest, Place::shared(address), site);
  machine.poll(site);
  const Mbarrier& barrier = find_mbarrier(thread, *thread.block, address, Op::kBarrierTest, site);
  if (!has_completed(barrier, parity)) return false;
  machine.learn(thread, barrier.completed);
  return true;
}

}  // namespace tandem::model
