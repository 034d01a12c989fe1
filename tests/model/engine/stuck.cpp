#include "engine/stuck.h"

#include "engine/machine.h"

namespace tandem::model {
namespace {

std::string describe_wait(const Wait& wait, const Names& names) {
  const std::string place = names.of(wait.place);
  switch (wait.kind) {
    case Wait::Kind::kNone: return "can run";
    case Wait::Kind::kMbarrier: return "wait for " + place + ", parity " + std::to_string(wait.number);
    case Wait::Kind::kNamedBarrier: return "wait at " + place;
    case Wait::Kind::kCollective: return std::string("wait in ") + op_name(wait.op) + " for the other threads";
    case Wait::Kind::kProducts: return "wait for wgmma groups";
    case Wait::Kind::kStores: return "wait for bulk groups";
    case Wait::Kind::kRegisters: return "wait for " + std::to_string(wait.number) + " registers a thread";
    case Wait::Kind::kCluster: return "wait at the cluster barrier";
  }
  return "";
}

bool same_wait(const Wait& a, const Wait& b) {
  return a.kind == b.kind && a.op == b.op && a.number == b.number && a.place.kind == b.place.kind &&
         a.place.number == b.place.number && a.site == b.site;
}

// Threads of a warp that wait for the same thing share a line.
std::string describe_warp(const Warp& warp, const Names& names) {
  std::string text;
  std::vector<bool> told(static_cast<size_t>(warp.size));
  for (int first = 0; first < warp.size; ++first) {
    const Thread& thread = *warp.threads[first];
    if (told[first] || thread.exited) continue;
    int count = 0;
    for (int lane = first; lane < warp.size; ++lane) {
      if (warp.threads[lane]->exited || !same_wait(warp.threads[lane]->wait, thread.wait)) continue;
      told[lane] = true;
      ++count;
    }
    text += "  warp " + std::to_string(warp.index) + " (" + names.role(warp.index) + "): " + std::to_string(count) +
            (count == 1 ? " thread, " + std::to_string(thread.rank) + ", " : " threads ") +
            describe_wait(thread.wait, names);
    if (thread.wait.kind != Wait::Kind::kNone) text += " at " + where(thread.wait.site);
    text += "\n";
  }
  return text;
}

std::string describe_barriers(const Block& block, const Names& names) {
  std::string text;
  for (const auto& [address, barrier] : block.barriers) {
    text += "  " + names.of(Place::shared(address)) + ": phase " + std::to_string(barrier.phase) + ", " +
            std::to_string(barrier.pending) + " of " + std::to_string(barrier.arrivals) + " arrivals and " +
            std::to_string(barrier.bytes) + " bytes to come, " + std::to_string(barrier.waiting.size()) +
            " threads wait\n";
  }
  for (int id = 0; id < kNamedBarriers; ++id) {
    const NamedBarrier& barrier = block.named[id];
    if (barrier.expected == 0) continue;
    text += "  " + names.of(Place::named(id)) + ": " + std::to_string(barrier.arrived) + " of " +
            std::to_string(barrier.expected) + " threads have come\n";
  }
  return text;
}

bool bytes_do_not_match(const Block& block) {
  for (const auto& [address, barrier] : block.barriers) {
    const bool only_bytes_missing = barrier.pending == 0 && barrier.bytes != 0;
    if (only_bytes_missing || barrier.bytes < 0) return true;
  }
  return false;
}

// Threads that can go on when nobody makes progress poll for what others are to do.
bool polls(const Warp& warp) {
  for (int lane = 0; lane < warp.size; ++lane) {
    if (!warp.threads[lane]->exited && warp.threads[lane]->wait.kind == Wait::Kind::kNone) return true;
  }
  return false;
}

// Some threads are at a call that others of their warp or warpgroup do not come to.
bool waits_in_collective(const Block& block) {
  for (const auto& warp : block.warps) {
    if (warp->collective.arrived != 0 && !polls(*warp)) return true;
  }
  for (const auto& warpgroup : block.warpgroups) {
    if (warpgroup->arrived != 0) return true;
  }
  return false;
}

bool waits_for(const Block& block, Wait::Kind kind) {
  for (const auto& thread : block.threads) {
    if (!thread->exited && thread->wait.kind == kind) return true;
  }
  return false;
}

}  // namespace

ReportKind stuck_kind(const Blocks& blocks) {
  for (const auto& block : blocks) {
    if (bytes_do_not_match(*block)) return ReportKind::kWrongByteCount;
    if (waits_in_collective(*block)) return ReportKind::kCollective;
    if (waits_for(*block, Wait::Kind::kRegisters)) return ReportKind::kRegisterBudget;
  }
  return ReportKind::kDeadlock;
}

std::string describe_stuck(const Blocks& blocks, const Names& names) {
  std::string text;
  for (const auto& block : blocks) {
    if (block->live_threads == 0) continue;
    text += "block " + std::to_string(block->index) + ":\n";
    for (const auto& warp : block->warps) text += describe_warp(*warp, names);
    text += describe_barriers(*block, names);
  }
  return text;
}

}  // namespace tandem::model
