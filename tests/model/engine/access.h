#pragma once

#include <string>

#include "engine/machine.h"

// The rules of every access of memory, by whatever instruction. Each reports what is wrong on behalf of `thread`.
namespace tandem::model {

struct Caller {
  const Thread& thread;
  Op op;
  Site site;
  const Issue* issue = nullptr;  // of an asynchronous operation, which `thread` has issued; null: it does this now
};

// In a cluster, the bits of a shared address from 24 up are the rank of the block that it lies in. Of an address in the
// caller's own block, what is below them: where all else in the model counts from.
constexpr int kWindowBits = 24;
uint32_t own_offset(const Caller& caller, uint32_t address);

// Bytes of shared memory, in bounds and no mbarrier's; reads want them written, writes make them so. Neither may meet a
// copy that is under way to them, nor a write what an asynchronous operation reads, and barriers must order each after
// the writes before, a write also after the reads. The second pair is for the async proxy, the copy engine and wgmma:
// what it reads must have been fenced.
const uint8_t* read_shared(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
uint8_t* write_shared(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
const uint8_t* read_shared_async(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
uint8_t* write_shared_async(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
// A thread orders its mbarrier_init()s before what the async proxy does. Whatever it fences, its count goes up.
void fence_initialized(Thread& thread);
// A copy to these bytes begins.
void expect_copy(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);

// Global memory: in bounds; reads want it written; where the grid before has written it, the thread must be ordered
// after that grid's end; and threads of one grid, as in shared memory, after each other. Atomic accesses of several
// threads need no order.
enum class Atomic { kNo, kYes };
void check_readable(const Caller& caller, const void* pointer, size_t bytes);  // but for the order
const uint8_t* read_global(const Caller& caller, const void* pointer, size_t bytes, Atomic atomic = Atomic::kNo);
uint8_t* write_global(const Caller& caller, void* pointer, size_t bytes, Atomic atomic = Atomic::kNo);

}  // namespace tandem::model
