#pragma once

#include <vector>

#include "planted_bug.h"
#include "problem.h"

namespace tandem::model {

// The forward kernel with one bug at a time.
const std::vector<PlantedBug>& planted_bugs();

// Large enough for every stage to be used twice, and for three tiles to one block; with keys at the end that are not
// used, so that V is cleaned, and rows whose scores grow, so that the rare path of the softmax is taken.
optest::Problem planted_problem();
const optest::Inputs& planted_inputs();

}  // namespace tandem::model
