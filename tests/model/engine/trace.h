#pragma once

#include <cstdint>
#include <vector>

#include "engine/op.h"

namespace tandem::model {

enum class Moment { kInstant, kBegin, kEnd };

// Something that a thread did, or that was done for it, at a scheduler step. Begin and end enclose a wait, or a wgmma.
struct Event {
  uint64_t step;
  int block;
  int thread;
  Op op;
  Moment moment;
  Place place;
};

// What happened in a run, in order. The hash covers every event, so two runs with the same hash were the same run.
class Trace {
 public:
  explicit Trace(bool keep) : keep_(keep) {}
  void record(const Event& event, bool worth_keeping);
  // An event that is for timelines only: the hash does without.
  void keep(const Event& event) {
    if (keep_) events_.push_back(event);
  }
  bool keeps() const { return keep_; }
  uint64_t hash() const { return hash_; }
  const std::vector<Event>& events() const { return events_; }

 private:
  bool keep_;
  uint64_t hash_ = 0xcbf29ce484222325u;  // FNV-1a
  std::vector<Event> events_;
};

}  // namespace tandem::model
