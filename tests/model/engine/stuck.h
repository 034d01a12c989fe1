#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/names.h"
#include "engine/report.h"
#include "engine/state.h"

// What a launch in which nobody can go on looks like.
namespace tandem::model {

using Blocks = std::vector<std::unique_ptr<Block>>;

// A deadlock that has a plain cause is called by it.
ReportKind stuck_kind(const Blocks& blocks);

// Who waits for what, and the state of every barrier, line by line.
std::string describe_stuck(const Blocks& blocks, const Names& names);

}  // namespace tandem::model
