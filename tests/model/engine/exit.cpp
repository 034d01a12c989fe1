#include "engine/exit.h"

namespace tandem::model {
namespace {

void check_stores(Machine& machine, Thread& thread) {
  const std::string name = who(thread, machine.names());
  if (thread.open_bulk_group != nullptr) {
    machine.fail(ReportKind::kUnfinishedAtExit, name + " ends with stores that bulk_commit() has not closed");
  }
  for (const auto& group : thread.bulk_groups) {
    if (group->read_waited) continue;
    machine.fail(ReportKind::kUnfinishedAtExit,
                 name + " ends without having waited for its bulk stores, which may still read shared memory");
  }
}

void check_products(Machine& machine, Thread& thread) {
  if (thread.registers.tiles.empty() && thread.registers.fragments.empty()) return;
  machine.fail(ReportKind::kUnfinishedAtExit,
               who(thread, machine.names()) + " ends without having waited for its wgmmas");
}

void check_collective(Machine& machine, Thread& thread) {
  const Collective& collective = thread.warp->collective;
  if (collective.arrived == 0) return;
  machine.fail(ReportKind::kCollective, who(thread, machine.names()) + " ends while others of its warp are in " +
                                            op_name(collective.op) + " at " + where(collective.site));
}

// The last thread of a block takes its shared memory with it.
void check_block(Machine& machine, Block& block) {
  const std::string name = "block " + std::to_string(block.index);
  if (block.loads_in_flight > 0) {
    machine.fail(ReportKind::kUnfinishedAtExit, name + " ends while copies into its shared memory are under way");
  }
  for (const auto& [address, barrier] : block.barriers) {
    if (barrier.bytes == 0) continue;
    machine.fail(ReportKind::kWrongByteCount, name + " ends, but " + machine.names().of(Place::shared(address)) +
                                                  " has " + std::to_string(barrier.bytes) +
                                                  " bytes more announced than come");
  }
  for (int id = 0; id < kNamedBarriers; ++id) {
    const NamedBarrier& barrier = block.named[id];
    if (barrier.expected == 0) continue;
    machine.fail(ReportKind::kUnfinishedAtExit, name + " ends, but at " + machine.names().of(Place::named(id)) + " " +
                                                    std::to_string(barrier.arrived) + " of " +
                                                    std::to_string(barrier.expected) +
                                                    " threads have come, and nobody has waited for them");
  }
}

}  // namespace

void thread_exit(Machine& machine, Thread& thread) {
  check_stores(machine, thread);
  check_products(machine, thread);
  check_collective(machine, thread);
  thread.exited = true;
  thread.warp->exited |= 1u << thread.lane();
  if (--thread.block->live_threads == 0) check_block(machine, *thread.block);
}

}  // namespace tandem::model
