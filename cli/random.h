#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace tandem::cli {

// A small generator whose numbers are the same with every standard library (those of <random>'s distributions are not):
// a printed seed reproduces a case anywhere. SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  bool chance(double probability) { return uniform() < probability; }
  int64_t integer(int64_t lowest, int64_t highest) {
    return lowest + static_cast<int64_t>(bits() % static_cast<uint64_t>(highest - lowest + 1));
  }
  int64_t pick(std::initializer_list<int64_t> values) {
    return *(values.begin() + integer(0, static_cast<int64_t>(values.size()) - 1));
  }
  double normal() {  // Box-Muller; 1 - uniform() is never 0
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace tandem::cli
