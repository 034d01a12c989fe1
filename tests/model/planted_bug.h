#pragma once

#include <string>
#include <vector>

#include "engine/faults.h"
#include "engine/report.h"

namespace tandem::model {

// A kernel with one thing broken in one place, and what the model has to say of it.
struct PlantedBug {
  std::string name;
  std::string text;  // what is broken
  std::vector<Fault> faults;
  ReportKind kind;
  std::vector<std::string> words;  // that the report's message has
};

// Faults, in words: repeat(of_warp(skip(Op::kBarrierArrive, "k_empty"), 4)).

inline Fault skip(Op op, const std::string& at = "", const std::string& function = "") {
  Fault fault;
  fault.op = op;
  fault.at = at;
  fault.function = function;
  return fault;
}

inline Fault repeat(Fault fault) {
  fault.change = Change::kRepeat;
  return fault;
}

inline Fault add(Fault fault, int64_t amount) {
  fault.change = Change::kAdd;
  fault.amount = amount;
  return fault;
}

inline Fault delay(Fault fault, int64_t steps) {
  fault.change = Change::kDelay;
  fault.amount = steps;
  return fault;
}

// A copy that lands later than anything that does not wait for it.
inline Fault late(const std::string& at) {
  return delay(skip(Op::kTmaLoad, at), 20'000);
}

inline Fault of_warp(Fault fault, int warp) {
  fault.warp = warp;
  return fault;
}

inline Fault of_thread(Fault fault, int thread) {
  fault.thread = thread;
  return fault;
}

inline Fault only(Fault fault, int occurrence) {
  fault.occurrence = occurrence;
  return fault;
}

}  // namespace tandem::model
