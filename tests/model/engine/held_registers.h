#pragma once

#include "engine/access.h"
#include "engine/products.h"

// Registers of one thread that wgmmas under way own: filled with a pattern at the issue, given back at the wait.
namespace tandem::model {

// The thread's tile whose accumulators are these registers; null if none is held.
std::shared_ptr<AccumulatorTile> held_tile(const Thread& thread, const Register* registers);

// Registers that are not held: they must be as the last wgmma_fence() saw them. Copies them out and holds them.
void hold_accumulators(const Caller& caller, Thread& thread, const std::shared_ptr<AccumulatorTile>& tile,
                       Register* registers);
// The fragment's value, held from now on until `group` is waited for.
std::array<uint32_t, 4> hold_fragment(const Caller& caller, Thread& thread, Register* registers, uint64_t group);

// wgmma_fence(): what the registers are now is what the next wgmmas may use.
void snapshot_registers(Thread& thread);

// Gives the calling thread the registers of all groups before `end_group` back.
void give_back_registers(const Caller& caller, Thread& thread, uint64_t end_group);

// Where element i of a thread's accumulators lies in the 64 x n tile. `rank` is the thread's in its warpgroup.
constexpr int accumulator_row(int rank, int i) {
  return rank / 32 * 16 + rank % 32 / 4 + i / 2 % 2 * 8;
}
constexpr int accumulator_column(int rank, int i) {
  return i / 4 * 8 + rank % 4 * 2 + i % 2;
}

}  // namespace tandem::model
