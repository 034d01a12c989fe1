#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/op.h"

namespace tandem::model {

// What a kernel calls the places of its shared memory and its named barriers; reports, faults and traces use the names.
class Names {
 public:
  // `count` things of `stride` bytes each, the first at `address`: "k_full" of 2 gives k_full[0] and k_full[1].
  void shared(const std::string& name, uint32_t address, uint32_t stride, uint32_t count);
  // mbarriers, 8 bytes each. in_turn: a rule of the kernel's: no warp arrives twice in one phase, and who waits waits
  // for one phase after the other.
  void mbarrier(const std::string& name, uint32_t address, uint32_t count, bool in_turn);
  // Named barriers `first` to first + count - 1.
  void named_barrier(const std::string& name, int first, int count);
  void warp_role(const std::string& name, int first_warp, int count);

  std::string of(Place place) const;  // "k_full[1]", "q[0] + 64", "shared 0x1f00", "named barrier 7"; "" of nothing
  bool in_turn(uint32_t barrier) const;
  std::string role(int warp) const;        // "load", or "warp 3"
  std::vector<std::string> roles() const;  // in order of their warps

 private:
  struct Range {
    std::string name;
    uint32_t first;
    uint32_t stride;
    uint32_t count;
    bool in_turn = false;
  };
  static const Range* find(const std::vector<Range>& ranges, uint32_t number);
  std::vector<Range> shared_;
  std::vector<Range> named_;
  std::vector<Range> roles_;
};

}  // namespace tandem::model
