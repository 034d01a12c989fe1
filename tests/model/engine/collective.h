#pragma once

#include "engine/machine.h"

// Calls that the threads of a warp make together.
namespace tandem::model {

// True in the last thread of the warp to come, while the others sleep; it calls release(). In the others: false, once
// released. All must name the same call in the same place.
bool gather(Op op, Place place, Site site, uint32_t value = 0);
void release(Warp& warp);

// gather() and release().
void gather_all(Op op, Place place, Site site);

// Of each lane, what it came with.
const std::array<uint32_t, kWarpSize>& exchange(Op op, uint32_t value, Site site);

}  // namespace tandem::model
