#pragma once

#include <cstdint>
#include <vector>

namespace tandem::model {

// A block's shared memory. Addresses count from the start of the window; the dynamic part begins at `first`.
class SharedMemory {
 public:
  // kArriving: a copy is under way to it.
  enum class State : uint8_t { kUnwritten, kWritten, kArriving, kBarrier };

  SharedMemory(uint32_t first, uint32_t bytes)
      : first_(first), bytes_(first + bytes, kPoison), states_(first + bytes, State::kUnwritten) {}

  uint32_t first() const { return first_; }
  uint32_t end() const { return static_cast<uint32_t>(bytes_.size()); }
  bool in_bounds(uint32_t address, uint32_t bytes) const {
    return address >= first_ && address <= end() && bytes <= end() - address;
  }
  bool all(uint32_t address, uint32_t bytes, State state) const { return count(address, bytes, state) == bytes; }
  bool any(uint32_t address, uint32_t bytes, State state) const { return count(address, bytes, state) > 0; }
  void set_state(uint32_t address, uint32_t bytes, State state) {
    for (uint32_t i = 0; i < bytes; ++i) states_[address + i] = state;
  }
  uint8_t* at(uint32_t address) { return &bytes_[address]; }

 private:
  static constexpr uint8_t kPoison = 0xff;  // NaN in every format
  uint32_t count(uint32_t address, uint32_t bytes, State state) const {
    uint32_t found = 0;
    for (uint32_t i = 0; i < bytes; ++i) found += states_[address + i] == state;
    return found;
  }
  uint32_t first_;
  std::vector<uint8_t> bytes_;
  std::vector<State> states_;
};

}  // namespace tandem::model
