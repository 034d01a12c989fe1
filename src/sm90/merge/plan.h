#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/status.h"

namespace tandem::sm90 {

// A thread merges one run of columns of one row at a time: 8, where 16-byte accesses can fetch and store them, else 1.
constexpr int kMergeWideColumns = 8;
constexpr int kMergeThreads = 1024;  // of a block; one block on each SM

// How to launch a merge. Host arithmetic only.
struct MergePlan {
  int columns = 1;   // of a run
  int64_t runs = 0;  // of all rows
};

// Ok, or in words why the kernel cannot run this problem. Reads no data; pointers may be null.
Status merge_supports(const MergeProblem& problem);

MergePlan plan_merge(const MergeProblem& problem);

}  // namespace tandem::sm90
