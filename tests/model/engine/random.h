#pragma once

#include <cstdint>

namespace tandem::model {

// splitmix64: a run's only source of chance.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, bound). The bias of the remainder does not matter here.
  uint64_t below(uint64_t bound) { return next() % bound; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }

 private:
  uint64_t state_;
};

}  // namespace tandem::model
