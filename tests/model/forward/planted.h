#pragma once

#include <string>
#include <vector>

#include "engine/machine.h"
#include "problem.h"

namespace tandem::model {

// The forward kernel with one thing broken in one place, and what the model has to say of it.
struct PlantedBug {
  std::string name;
  std::string text;  // what is broken
  std::vector<Fault> faults;
  ReportKind kind;
  std::vector<std::string> words;  // that the report's message has
};

const std::vector<PlantedBug>& planted_bugs();

// Large enough for every stage to be used twice, and for three tiles to one block; with keys at the end that are not
// used, so that V is cleaned, and rows whose scores grow, so that the rare path of the softmax is taken.
optest::Problem planted_problem();
const optest::Inputs& planted_inputs();

}  // namespace tandem::model
