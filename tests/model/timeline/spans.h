#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/names.h"
#include "engine/trace.h"

namespace tandem::model {

// Something that took from one scheduler step to another.
struct Span {
  enum class Kind { kWait, kSoftmax, kWarpProduct, kIssueProduct, kIssueLoad, kIssueStore, kProduct, kCopy };
  Kind kind;
  size_t row;
  std::string name;  // "wait for k_full[1]"
  uint64_t begin;
  uint64_t end;
};

// One block's run: a row for each role (its first warp), one for the copy engine, one for each warpgroup's products.
struct Timeline {
  std::vector<std::string> rows;
  std::vector<Span> spans;
  uint64_t steps = 0;
};

Timeline make_timeline(const std::vector<Event>& events, const Names& names, int block, uint64_t steps);

// Lines of `width` characters, one for each row, of the steps from `first` to `end`.
std::string timeline_text(const Timeline& timeline, uint64_t first, uint64_t end, int width);

// In the format of Chrome's trace viewer, which Perfetto opens; a step is a microsecond.
std::string timeline_json(const Timeline& timeline);

}  // namespace tandem::model
