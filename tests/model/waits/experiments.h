#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/machine.h"

namespace tandem::model {

// What was wrong with a run.
struct Finding {
  std::string kind;  // a report's, or "wrong result"; empty: nothing
  std::string message;
};

// A problem for one kernel, small, that comes to waits which others do not come to.
using Run = std::function<Finding(const Options& options)>;
struct Experiment {
  std::string name;
  std::function<Finding()> check;  // runs it against the definition
  std::function<Run()> prepare;    // what its runs share; all statements are kept
};

std::vector<Experiment> forward_experiments();
std::vector<Experiment> backward_experiments();
std::vector<Experiment> quantize_experiments();

}  // namespace tandem::model
