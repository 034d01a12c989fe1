#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// What is ordered before what: vector clocks. A party is whoever accesses memory at times of its own: a thread; an
// mbarrier, whose phases stand for the copies that complete in them; a warp's wgmma groups; a thread's bulk groups, as
// readers of shared memory and as writers of global memory; the grid before.
namespace tandem::model {

constexpr uint32_t kNoParty = ~uint32_t{0};

// What a party did when it had counted so far. Threads count the times that they gave away what they know, others
// their phases or groups, from 1.
struct Stamp {
  uint32_t party = kNoParty;
  uint32_t count = 0;
};

// Of each party, how far it had counted when it did the last thing that is ordered before; 0 past the end.
using Clock = std::vector<uint32_t>;
using Knowledge = std::shared_ptr<const Clock>;  // null: of nothing

// What one thread knows at one time. It knows all that it did itself.
struct View {
  Knowledge known;
  Stamp self;
  bool covers(Stamp stamp) const {
    if (stamp.party == self.party) return stamp.count <= self.count;
    return known != nullptr && stamp.party < known->size() && (*known)[stamp.party] >= stamp.count;
  }
};

void add(Clock& clock, const Knowledge& known);
void add(Clock& clock, Stamp stamp);

// An asynchronous operation: the parties that count it, and what its issuers knew.
struct Issue {
  Stamp stamp;
  uint32_t parties = 1;  // this one and those that follow: a wgmma's four warps
  std::vector<View> views;
};

// Sums of knowledge. The threads of a warp mostly know the same and learn the same: the latest sums are kept.
class Sums {
 public:
  Knowledge of(const Knowledge& a, const Knowledge& b);
  Knowledge of(const Knowledge& a, Stamp b);

 private:
  struct Kept {
    Knowledge a, b;
    Stamp stamp;
    Knowledge sum;
  };
  Kept& place_of(const Knowledge& a, size_t key);
  std::array<Kept, 256> kept_;
};

}  // namespace tandem::model
