#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sm90/ptx/tensor_map.h"
#include "sm90/tensor_map_spec.h"

// One case tests one wrapper, or a few that only make sense together. A case is a type:
//
//   kName, kThreads, kBlocks, kClusterSize   the launch
//   kInWords, kOutWords                      of the buffers, which all blocks share
//   input(random, in)                        on the host, from a seed
//   run(params)                              on the device, through ptx only
//   kPrepareThreads, prepare(params)         where there is a grid, of one block, before that one, which depends on it
//   expect(in, out)                          on the host: the right result, from the instruction's definition; `out`
//                                            comes filled with kOutFill
//   kKind, kRelative, kAbsolute              how results compare
//   load_map(in), store_map(out)             tensor maps, where the case has any
//
// The same header compiles for the GPU and for the host model.
namespace tandem::sm90::wrappers {

using Words = std::vector<uint32_t>;

enum class Kind { kBits, kFloats };

struct Params {
  ptx::TensorMap load_map;   // of `in`
  ptx::TensorMap store_map;  // of `out`
  const uint32_t* in;
  uint32_t* out;
};

constexpr int kSharedBytes = 96 * 1024;

// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t bits() { return static_cast<uint32_t>(next() >> 32); }
  int below(int bound) { return static_cast<int>(next() >> 33) % bound; }

 private:
  uint64_t state_;
};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void random_bits(Random& random, Words& words) {
  for (uint32_t& word : words) word = random.bits();
}

// Of either sign, magnitudes 2^-low to 2^high; with_specials: some zeros, infinities, NaNs, subnormals and huge values.
inline void random_floats(Random& random, Words& words, int low, int high, bool with_specials) {
  constexpr uint32_t kSpecials[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fffffff,
                                    0x00000001, 0x807fffff, 0x7f7fffff, 0xff7fffff, 0x3f800000};
  for (uint32_t& word : words) {
    const auto exponent = static_cast<uint32_t>(127 - low + random.below(low + high));
    word = (random.bits() & 0x807fffff) | exponent << 23;
    if (with_specials && random.below(8) == 0) word = kSpecials[random.below(10)];
  }
}

// What most cases share; a case overrides what differs.
struct CaseDefaults {
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 1;
  static constexpr int kClusterSize = 1;
  static constexpr int kPrepareThreads = 0;
  static constexpr uint32_t kOutFill = 0xcdcdcdcd;  // of `out` before the launch
  static constexpr Kind kKind = Kind::kBits;
  static constexpr double kRelative = 0;
  static constexpr double kAbsolute = 0;
  static void input(Random& random, Words& in) { random_bits(random, in); }
  static TensorMapSpec load_map(const void*) { return {}; }
  static TensorMapSpec store_map(void*) { return {}; }
};

// "ex2"; cases made of many parameters overload it.
template <typename Case>
std::string case_name(Case) {
  return Case::kName;
}

}  // namespace tandem::sm90::wrappers
