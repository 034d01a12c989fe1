#include "engine/held_registers.h"

#include <algorithm>
#include <cstring>

namespace tandem::model {
namespace {

[[noreturn]] void fail_touched(const Caller& caller, const Thread& thread, const std::string& what) {
  Machine::current().fail_by(thread, ReportKind::kTouchedAccumulator, caller.op, caller.site, what);
}

KnownRegisters* find_known(Thread& thread, const Register* registers) {
  for (KnownRegisters& known : thread.registers.known) {
    if (known.registers == registers) return &known;
  }
  return nullptr;
}

void remember(Thread& thread, Register* registers, int count) {
  KnownRegisters* known = find_known(thread, registers);
  if (known == nullptr) {
    thread.registers.known.push_back({registers, {}});
    known = &thread.registers.known.back();
  }
  known->snapshot.assign(registers, registers + count);
}

bool overlap(const Register* a, int a_count, const Register* b, int b_count) {
  return a < b + b_count && b < a + a_count;
}

void check_not_shared(const Caller& caller, const Thread& thread, const Register* registers, int count,
                      const char* what) {
  const auto check = [&](const Register* held, int held_count) {
    if (!overlap(registers, count, held, held_count)) return;
    fail_touched(caller, thread, std::string(what) + "'s registers are in part another wgmma's that is not waited for");
  };
  for (const auto& tile : thread.registers.tiles) check(tile->registers[thread.rank % kWarpgroupSize], tile->n / 2);
  for (const HeldFragment& held : thread.registers.fragments) check(held.registers, 4);
}

// HAZARD: a wgmma reads registers that ordinary code has written since the fence, maybe before that write has happened.
void check_fenced(const Caller& caller, Thread& thread, const Register* registers, int count, const char* what) {
  check_not_shared(caller, thread, registers, count, what);
  const auto fail = [&](const std::string& problem) {
    Machine::current().fail_by(thread, ReportKind::kMissingWgmmaFence, caller.op, caller.site, what + problem);
  };
  if (!thread.registers.fenced) fail(": there has been no wgmma_fence()");
  const KnownRegisters* known = find_known(thread, registers);
  if (known == nullptr) return;
  const auto known_count = static_cast<int>(known->snapshot.size());
  for (int i = 0; i < std::min(count, known_count); ++i) {
    if (registers[i] != known->snapshot[i]) {
      fail(", register " + std::to_string(i) + ": changed since the last wgmma_fence()");
    }
  }
}

void check_untouched(const Caller& caller, const Thread& thread, const Register* registers, int count,
                     const char* what) {
  for (int i = 0; i < count; ++i) {
    if (registers[i] == kHeldPattern) continue;
    fail_touched(
        caller, thread,
        std::string(what) + ", register " + std::to_string(i) + ", was written between the wgmma and this wait");
  }
}

void give_back_tile(const Caller& caller, Thread& thread, AccumulatorTile& tile) {
  const int rank = thread.rank % kWarpgroupSize;
  Register* registers = tile.registers[rank];
  check_untouched(caller, thread, registers, tile.n / 2, "an accumulator");
  for (int i = 0; i < tile.n / 2; ++i) {
    const float value = tile.values[accumulator_row(rank, i) * tile.n + accumulator_column(rank, i)];
    std::memcpy(&registers[i], &value, sizeof(value));
  }
  ++tile.returned;
  remember(thread, registers, tile.n / 2);
}

}  // namespace

std::shared_ptr<AccumulatorTile> held_tile(const Thread& thread, const Register* registers) {
  for (const auto& tile : thread.registers.tiles) {
    if (tile->registers[thread.rank % kWarpgroupSize] == registers) return tile;
  }
  return nullptr;
}

void hold_accumulators(const Caller& caller, Thread& thread, const std::shared_ptr<AccumulatorTile>& tile,
                       Register* registers) {
  const int rank = thread.rank % kWarpgroupSize;
  check_fenced(caller, thread, registers, tile->n / 2, "an accumulator");
  for (int i = 0; i < tile->n / 2; ++i) {
    std::memcpy(&tile->values[accumulator_row(rank, i) * tile->n + accumulator_column(rank, i)], &registers[i], 4);
  }
  std::fill(registers, registers + tile->n / 2, kHeldPattern);
  tile->registers[rank] = registers;
  thread.registers.tiles.push_back(tile);
}

std::array<uint32_t, 4> hold_fragment(const Caller& caller, Thread& thread, Register* registers, uint64_t group) {
  for (HeldFragment& held : thread.registers.fragments) {
    if (held.registers != registers) continue;
    held.group = group;
    return held.original;
  }
  check_fenced(caller, thread, registers, 4, "an A fragment");
  HeldFragment held;
  held.registers = registers;
  held.group = group;
  std::copy(registers, registers + 4, held.original.begin());
  std::fill(registers, registers + 4, kHeldPattern);
  thread.registers.fragments.push_back(held);
  return held.original;
}

void snapshot_registers(Thread& thread) {
  thread.registers.fenced = true;
  for (KnownRegisters& known : thread.registers.known) {
    std::copy(known.registers, known.registers + known.snapshot.size(), known.snapshot.begin());
  }
}

void give_back_registers(const Caller& caller, Thread& thread, uint64_t end_group) {
  auto& tiles = thread.registers.tiles;
  for (size_t i = 0; i < tiles.size();) {
    if (tiles[i]->group >= end_group) {
      ++i;
      continue;
    }
    give_back_tile(caller, thread, *tiles[i]);
    tiles.erase(tiles.begin() + static_cast<std::ptrdiff_t>(i));
  }
  auto& fragments = thread.registers.fragments;
  for (size_t i = 0; i < fragments.size();) {
    if (fragments[i].group >= end_group) {
      ++i;
      continue;
    }
    check_untouched(caller, thread, fragments[i].registers, 4, "an A fragment");
    std::copy(fragments[i].original.begin(), fragments[i].original.end(), fragments[i].registers);
    remember(thread, fragments[i].registers, 4);
    fragments.erase(fragments.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace tandem::model
