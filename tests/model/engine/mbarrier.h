#pragma once

#include "engine/machine.h"

namespace tandem::model {

// The barrier at an address of a block that the caller names; reports where there is none.
Mbarrier& find_mbarrier(const Thread& caller, Block& block, uint32_t address, Op op, Site site);

// A copy that `caller` has issued has written `bytes`.
void complete_bytes(const Thread& caller, Block& block, uint32_t address, uint32_t bytes, Op op, Site site);

}  // namespace tandem::model
