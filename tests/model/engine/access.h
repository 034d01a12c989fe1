#pragma once

#include <string>

#include "engine/machine.h"

// The rules of every access of memory, by whatever instruction. Each reports what is wrong on behalf of `thread`.
namespace tandem::model {

struct Caller {
  const Thread& thread;
  Op op;
  Site site;
};

// In a cluster, the bits of a shared address from 24 up are the rank of the block that it lies in. Of an address in the
// caller's own block, what is below them: where all else in the model counts from.
constexpr int kWindowBits = 24;
uint32_t own_offset(const Caller& caller, uint32_t address);

// Bytes of shared memory, in bounds and no mbarrier's; reads want them written, writes make them so. Neither may meet a
// copy that is under way to them, nor a write what an asynchronous operation reads. The second pair is for the async
// proxy, the copy engine and wgmma: what it reads must have been fenced.
const uint8_t* read_shared(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
uint8_t* write_shared(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
const uint8_t* read_shared_async(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
uint8_t* write_shared_async(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);
// A copy to these bytes begins.
void expect_copy(const Caller& caller, Block& block, uint32_t address, uint32_t bytes);

// Global memory: in bounds; reads want it written; and where the grid before has written it, the block must have waited
// for that grid.
const uint8_t* read_global(const Caller& caller, const void* pointer, size_t bytes);
uint8_t* write_global(const Caller& caller, void* pointer, size_t bytes);

}  // namespace tandem::model
