#pragma once

#include <cstdint>
#include <vector>

#include "engine/knowledge.h"
#include "engine/op.h"
#include "engine/site.h"

namespace tandem::model {

struct Thread;

enum class Proxy : uint8_t { kOrdinary, kAsync };

// Who accesses memory, with what knowledge: of all `views`, for a wgmma is many threads'.
struct Accessor {
  const Thread* thread;
  Op op;
  Site site;
  Stamp stamp;
  uint32_t parties;
  const View* views;
  size_t view_count;
  Proxy proxy;
  bool atomic;
  bool knows(Stamp earlier) const;
};

// One access of bytes that lie in one cell.
struct Access {
  Stamp stamp;
  uint32_t parties;
  uint32_t fenced;  // a write of its thread: the thread's count at its fence towards the async proxy; 0: none since
  uint16_t bytes;   // one bit each
  Proxy proxy;
  bool atomic;
  Op op;
  const Thread* thread;
  Site site;
};

// With what an access is in conflict: nothing orders that before it, or it lacks a fence.
struct Conflict {
  const Access* earlier = nullptr;
  bool wrote = false;
  bool lacks_fence = false;
};

// The latest accesses of each byte of a memory: all that a later one may race with. An access races with an earlier one
// that it does not know of, if one of them writes and not both are atomic.
class History {
 public:
  // These also keep the access, where there is no conflict.
  Conflict read(uint64_t address, size_t bytes, const Accessor& by);
  Conflict write(uint64_t address, size_t bytes, const Accessor& by);
  // The writer fences what it has written of these bytes.
  void fence(uint64_t address, size_t bytes, Stamp writer);
  void clear() { cells_.clear(); }

 private:
  struct Cell {
    std::vector<Access> writes;
    std::vector<Access> reads;
  };
  static constexpr uint32_t kCellBytes = 16;
  template <typename Visit>
  Conflict for_each_cell(uint64_t address, size_t bytes, Visit visit);
  std::vector<Cell> cells_;
};

}  // namespace tandem::model
