#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "problem.h"

namespace tandem::optest {

// What the tests of a suite run on. A target with a type and head dims of its own gives them to every problem, so that
// the same tests run in each instance of a kernel; one without leaves each test its own.
struct Target {
  std::string name;
  int32_t backend = TANDEM_BACKEND_REFERENCE;
  bool gradients = true;  // false: it has the forward only
  int32_t dtype = TANDEM_DTYPE_NONE;
  int64_t headdim = 0;
  int64_t headdim_v = 0;
  bool v_in_slots = false;    // of e4m3, V comes as V^T
  bool fp32_results = true;   // it writes O of 16-bit inputs in fp32 too
  bool broadcasts = true;     // it reads inputs with strides of 0 in place
  bool deterministic = true;  // it can give gradients of the same bits on every run
  bool fp32_inputs = true;    // its quantiser takes fp32 besides the 16-bit types

  bool fixed() const { return dtype != TANDEM_DTYPE_NONE; }
};

// Programs choose by what they link, as with open_device().
std::vector<Target> targets();

// Those of the quantiser's suite, which leave each test its own type and head dims.
std::vector<Target> quantize_targets();

// The problem in the target's type and head dims. Results in fp32 stay so, if it has them.
Problem fitted(Problem problem, const Target& target);

inline void PrintTo(const Target& target, std::ostream* stream) {
  *stream << target.name;
}

}  // namespace tandem::optest
