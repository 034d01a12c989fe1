// wgmma: issued by a warpgroup together, carried out in order at later steps, waited for by groups.

#include <algorithm>

#include "engine/api.h"
#include "engine/collective.h"
#include "engine/held_registers.h"
#include "engine/matrix_product.h"

namespace tandem::model {
namespace {

template <typename Visit>
void for_each_thread(const Warpgroup& warpgroup, Visit visit) {
  for (Warp* warp : warpgroup.warps) {
    for (Thread* thread : warp->threads) visit(*thread);
  }
}

bool same_operands(const WgmmaCall& a, const WgmmaCall& b) {
  return a.descriptor_a == b.descriptor_a && a.descriptor_b == b.descriptor_b && a.accumulate == b.accumulate;
}

void check_uniform(const Caller& caller, const Warpgroup& warpgroup) {
  const WgmmaCall& first = warpgroup.warps[0]->threads[0]->wgmma_call;
  const auto fail = [&](const Thread& thread, const char* what) {
    Machine::current().fail_by(thread, ReportKind::kCollective, caller.op, caller.site, what);
  };
  for_each_thread(warpgroup, [&](const Thread& thread) {
    if (!same_operands(thread.wgmma_call, first)) fail(thread, "descriptors or `accumulate` differ in the warpgroup");
    if (thread.warp->products_committed != warpgroup.warps[0]->products_committed) {
      fail(thread, "the warps of the warpgroup have not committed the same wgmmas");
    }
  });
}

void check_descriptors(const Caller& caller, const WgmmaCall& call) {
  const auto check = [&](const char* name, uint64_t bits, bool mn_major, int extent) {
    const std::string problem = refusal(MatrixDescriptor(bits), mn_major, extent);
    if (problem.empty()) return;
    Machine::current().fail_by(caller.thread, ReportKind::kDescriptor, caller.op, caller.site,
                               std::string("descriptor of ") + name + ": " + problem);
  };
  if (call.fragment == nullptr) check("A", call.descriptor_a, call.shape.a_mn_major, kProductRows);
  check("B", call.descriptor_b, call.shape.b_mn_major, call.shape.n);
}

// The tile that all threads' accumulators belong to; made if none is held.
std::shared_ptr<AccumulatorTile> tile_of(const Caller& caller, Warpgroup& warpgroup, const WgmmaCall& call,
                                         uint64_t group) {
  const Thread& first = *warpgroup.warps[0]->threads[0];
  std::shared_ptr<AccumulatorTile> tile = held_tile(first, call.accumulators);
  const bool held = tile != nullptr;
  if (!held) {
    tile = std::make_shared<AccumulatorTile>();
    tile->n = call.shape.n;
    tile->values.resize(kProductRows * call.shape.n);
  }
  for_each_thread(warpgroup, [&](Thread& thread) {
    Register* registers = thread.wgmma_call.accumulators;
    if (held_tile(thread, registers) != (held ? tile : nullptr) || tile->returned > 0) {
      Machine::current().fail_by(thread, ReportKind::kCollective, caller.op, caller.site,
                                 "some warps have waited for the last wgmma on these accumulators, others have not");
    }
    if (!held) hold_accumulators(caller, thread, tile, registers);
  });
  tile->group = group;
  return tile;
}

void note_reads(Warpgroup& warpgroup, const WgmmaCall& call, uint64_t group, Site site) {
  const auto note = [&](uint64_t bits, bool mn_major, int extent, bool is_a) {
    const AddressRange range = range_of(MatrixDescriptor(bits), mn_major, extent);
    warpgroup.products.reads.push_back({range.begin, range.end, is_a, group, site});
  };
  if (call.fragment == nullptr) note(call.descriptor_a, call.shape.a_mn_major, kProductRows, true);
  note(call.descriptor_b, call.shape.b_mn_major, call.shape.n, false);
}

// The calling thread has waited for all groups before `end_group`.
void forget_reads(Thread& thread, uint64_t end_group) {
  std::vector<ProductRead>& reads = thread.warp->warpgroup->products.reads;
  for (ProductRead& read : reads) {
    if (thread.products_waited <= read.group && read.group < end_group) --read.threads_to_wait;
  }
  thread.products_waited = std::max(thread.products_waited, end_group);
  const auto waited_for = [](const ProductRead& read) { return read.threads_to_wait == 0; };
  reads.erase(std::remove_if(reads.begin(), reads.end(), waited_for), reads.end());
}

void wake_product_waiters(Warpgroup& warpgroup) {
  for_each_thread(warpgroup, [](Thread& thread) {
    if (!thread.exited && thread.wait.kind == Wait::Kind::kProducts) Machine::current().wake(thread);
  });
}

// What all threads of the warpgroup know: many know the same.
std::shared_ptr<const Issue> issue_of(const Warpgroup& warpgroup, uint64_t group) {
  auto issue = std::make_shared<Issue>();
  issue->stamp = {warpgroup.warps[0]->product_party, static_cast<uint32_t>(group + 1)};
  issue->parties = 4;
  for_each_thread(warpgroup, [&](const Thread& thread) {
    for (View& view : issue->views) {
      if (view.known != thread.view.known) continue;
      view.self = {};  // nobody's alone
      return;
    }
    issue->views.push_back(thread.view);
  });
  return issue;
}

// All 128 threads are here.
void issue(const Caller& caller, Warpgroup& warpgroup) {
  Machine& machine = Machine::current();
  check_uniform(caller, warpgroup);
  const Thread* thread = warpgroup.warps[0]->threads[0];
  const uint64_t group = warpgroup.warps[0]->products_committed;
  Product product;
  product.call = thread->wgmma_call;
  check_descriptors(caller, product.call);
  product.tile = tile_of(caller, warpgroup, product.call, group);
  if (product.call.fragment != nullptr) {
    for_each_thread(warpgroup, [&](Thread& owner) {
      product.fragments.push_back(hold_fragment(caller, owner, owner.wgmma_call.fragment, group));
    });
  }
  note_reads(warpgroup, product.call, group, caller.site);
  Products& products = warpgroup.products;
  products.last_ready = std::max(products.last_ready + 1, machine.step_after(machine.options().products));
  products.groups.push_back(group);
  const Site site = caller.site;
  Warpgroup* const owner = &warpgroup;
  const std::shared_ptr<const Issue> issued = issue_of(warpgroup, group);
  machine.schedule(products.last_ready, [=, &machine] {
    multiply({*thread, Op::kWgmma, site, issued.get()}, product);
    owner->products.groups.pop_front();
    machine.record(*owner->warps[0]->threads[machine.elected_lane()], Op::kProductDone, {});
    wake_product_waiters(*owner);
  });
}

// The last thread of a warp; true in the last warp.
bool gather_warpgroup(Op op, Site site, Warpgroup& warpgroup, const Warp& warp) {
  Machine& machine = Machine::current();
  if (warpgroup.arrived != 0 && !(warpgroup.op == op && warpgroup.site == site)) {
    machine.fail_here(
        ReportKind::kCollective, op, site,
        std::string("other warps of the warpgroup are in ") + op_name(warpgroup.op) + " at " + where(warpgroup.site));
  }
  warpgroup.op = op;
  warpgroup.site = site;
  warpgroup.arrived |= 1u << (warp.index % 4);
  if (warpgroup.arrived != 0xf) return false;
  warpgroup.arrived = 0;
  return true;
}

}  // namespace

void wgmma(WgmmaShape shape, float* d, const uint32_t* fragment, uint64_t descriptor_a, uint64_t descriptor_b,
           bool accumulate, Site site) {
  Machine& machine = Machine::current();
  Thread& thread = machine.self();
  const Verdict verdict = machine.judge(Op::kWgmma, {}, site);
  if (verdict.times == 0) return;
  descriptor_b += static_cast<uint64_t>(verdict.add);
  // The registers' bits, whatever their type; a fragment that a wgmma reads is its own until the wait.
  thread.wgmma_call = {
      shape, reinterpret_cast<Register*>(d), const_cast<uint32_t*>(fragment), descriptor_a, descriptor_b, accumulate};
  if (!gather(Op::kWgmma, {}, site)) return;
  Warpgroup& warpgroup = *thread.warp->warpgroup;
  if (!gather_warpgroup(Op::kWgmma, site, warpgroup, *thread.warp)) {
    machine.suspend({Wait::Kind::kCollective, Op::kWgmma, {}, 0, site});
    return;
  }
  issue({thread, Op::kWgmma, site}, warpgroup);
  for (Warp* warp : warpgroup.warps) release(*warp);
}

void wgmma_fence(Site site) {
  if (Machine::current().judge(Op::kWgmmaFence, {}, site).times == 0) return;
  gather_all(Op::kWgmmaFence, {}, site);
  snapshot_registers(Machine::current().self());
}

void wgmma_commit(Site site) {
  if (Machine::current().judge(Op::kWgmmaCommit, {}, site).times == 0) return;
  if (!gather(Op::kWgmmaCommit, {}, site)) return;
  Warp& warp = *Machine::current().self().warp;
  ++warp.products_committed;
  release(warp);
}

void wgmma_wait(int pending, Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kWgmmaWait, {}, site).times == 0) return;
  gather_all(Op::kWgmmaWait, {}, site);
  Thread& thread = machine.self();
  const uint64_t committed = thread.warp->products_committed;
  const uint64_t end_group = committed - std::min(committed, static_cast<uint64_t>(pending));
  const std::deque<uint64_t>& groups = thread.warp->warpgroup->products.groups;
  machine.record(thread, Op::kWgmmaWait, {}, Moment::kBegin);
  while (!groups.empty() && groups.front() < end_group) {
    machine.suspend({Wait::Kind::kProducts, Op::kWgmmaWait, {}, 0, site});
  }
  machine.record(thread, Op::kWgmmaWait, {}, Moment::kEnd);
  give_back_registers({thread, Op::kWgmmaWait, site}, thread, end_group);
  machine.learn(thread, {thread.warp->product_party, static_cast<uint32_t>(end_group)});
  forget_reads(thread, end_group);
}

void check_not_held(uint32_t bits, Site site) {
  if ((bits & 0x7fffffff) != kHeldPattern) return;
  Machine& machine = Machine::current();
  machine.fail(ReportKind::kTouchedAccumulator, who(machine.self(), machine.names()) + " at " + where(site) +
                                                    " reads a register of a wgmma that it has not waited for");
}

}  // namespace tandem::model
