#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/names.h"
#include "engine/op.h"
#include "engine/site.h"

namespace tandem::model {

enum class Change { kSkip, kRepeat, kAdd, kDelay };

// One thing done wrong on purpose: the calls that match are left out, made twice, or made with another number. Or done
// late, which no kernel may mind: an asynchronous operation completes that many steps later than it would.
struct Fault {
  Op op;
  Change change = Change::kSkip;
  int64_t amount = 0;    // kAdd: what is added to the call's number (op.h); kDelay: steps
  std::string at;        // beginning of the place's name, "k_full" or "k_full[1]"; empty: any
  std::string function;  // that makes the call; empty: any
  int block = -1;        // -1: any
  int warp = -1;
  int thread = -1;
  int occurrence = -1;  // which of a thread's matching calls, from 0; -1: all

  std::string text() const;
};

// How often a call is carried out, what is added to its number, and how many steps later it completes.
struct Verdict {
  int times = 1;
  int64_t add = 0;
  uint64_t delay = 0;
};

class Faults {
 public:
  explicit Faults(std::vector<Fault> faults) : faults_(std::move(faults)), counts_(faults_.size()) {}
  bool empty() const { return faults_.empty(); }
  bool any_applied() const { return applied_; }
  Verdict judge(Op op, Place place, Site site, int block, int thread, const Names& names);

 private:
  std::vector<Fault> faults_;
  std::vector<std::map<std::pair<int, int>, int>> counts_;  // of each fault: matching calls so far, by block and thread
  bool applied_ = false;
};

}  // namespace tandem::model
