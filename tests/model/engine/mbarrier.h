#pragma once

#include "engine/machine.h"

namespace tandem::model {

// The barrier at an address of a block that the caller names; reports where there is none, or where nothing orders its
// initialization before.
Mbarrier& find_mbarrier(const Thread& caller, Block& block, uint32_t address, Op op, Site site);

// Reports unless the barrier's initializer has made it known to the async proxy.
void check_init_fenced(const Thread& caller, const Mbarrier& barrier, uint32_t address, Op op, Site site);

// A copy that `caller` has issued has written `bytes`.
void complete_bytes(const Thread& caller, Block& block, uint32_t address, uint32_t bytes, Op op, Site site);

}  // namespace tandem::model
