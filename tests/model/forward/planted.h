#pragma once

#include <string>
#include <vector>

#include "engine/machine.h"
#include "forward/problem.h"

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

// Large enough for every stage to be used three times, and for three tiles to one block.
ForwardProblem planted_problem();

}  // namespace tandem::model
