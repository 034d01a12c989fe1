#pragma once

#include <vector>

#include "backward/launch.h"
#include "planted_bug.h"

namespace tandem::model {

// The backward kernel with one bug at a time: each wait, arrival and fence of its barrier table left out that does not
// follow from others, and more.
const std::vector<PlantedBug>& planted_backward_bugs();
// The same of what is different where P is packed late: another order of products, and fewer stages of dO than of Q
// (where there are as many, dO's falls free before Q's).
const std::vector<PlantedBug>& planted_late_bugs();

// For one block, which draws four tiles of some steps each, so that every barrier is used again; K and V have keys to
// clear, and the first step rows.
const BackwardCase& planted_backward_case();
const BackwardCase& planted_late_case();

}  // namespace tandem::model
