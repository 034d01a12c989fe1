#include "engine/collective.h"

namespace tandem::model {
namespace {

uint32_t all_lanes(const Warp& warp) {
  return warp.size == kWarpSize ? 0xffffffffu : (1u << warp.size) - 1;
}

void check_same_call(const Warp& warp, Op op, Site site) {
  Machine& machine = Machine::current();
  const Collective& collective = warp.collective;
  if (warp.exited != 0) {
    machine.fail_here(ReportKind::kCollective, op, site,
                      "all threads of the warp must call it, and some have returned from the kernel");
  }
  if (collective.arrived == 0 || (collective.op == op && collective.site == site)) return;
  machine.fail_here(
      ReportKind::kCollective, op, site,
      std::string("other threads of the warp are in ") + op_name(collective.op) + " at " + where(collective.site));
}

}  // namespace

bool gather(Op op, Place place, Site site, uint32_t value) {
  Machine& machine = Machine::current();
  const Thread& thread = machine.self();
  Warp& warp = *thread.warp;
  Collective& collective = warp.collective;
  check_same_call(warp, op, site);
  collective.op = op;
  collective.site = site;
  collective.arrived |= 1u << thread.lane();
  collective.values[collective.generation % 2][thread.lane()] = value;
  if (collective.arrived != all_lanes(warp)) {
    machine.suspend({Wait::Kind::kCollective, op, place, 0, site});
    return false;
  }
  collective.arrived = 0;
  ++collective.generation;
  machine.record(*warp.threads[machine.elected_lane() % warp.size], op, place);
  return true;
}

void release(Warp& warp) {
  Machine& machine = Machine::current();
  for (int lane = 0; lane < warp.size; ++lane) {
    if (warp.threads[lane] != &machine.self()) machine.wake(*warp.threads[lane]);
  }
}

void gather_all(Op op, Place place, Site site) {
  if (gather(op, place, site)) release(*Machine::current().self().warp);
}

const std::array<uint32_t, kWarpSize>& exchange(Op op, uint32_t value, Site site) {
  Warp& warp = *Machine::current().self().warp;
  const auto& values = warp.collective.values[warp.collective.generation % 2];
  if (gather(op, {}, site, value)) release(warp);
  return values;
}

}  // namespace tandem::model
