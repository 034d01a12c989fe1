#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/history.h"

namespace tandem::model {

// Global memory: allocations with a name, bounds, and a note for each byte who has written it: nobody, the host, or
// which grid. Pointers are the host's own, so tests read and write through them.
class GlobalMemory {
 public:
  // 256-byte aligned, filled with 0xff (NaN in every format), nothing written, unmapped space on either side.
  void* allocate(const std::string& name, size_t bytes);
  template <typename T>
  T* upload(const std::string& name, const std::vector<T>& values) {
    return static_cast<T*>(upload_bytes(name, values.data(), values.size() * sizeof(T)));
  }
  void* upload_bytes(const std::string& name, const void* data, size_t bytes);

  // Empty where the access is all right, else what is wrong with it.
  std::string out_of_bounds(const void* pointer, size_t bytes) const;
  std::string unwritten(const void* pointer, size_t bytes) const;
  // Of bytes that are in bounds.
  void mark_written(const void* pointer, size_t bytes);
  // Keeps the accesses of one grid: which races with which. Memory that the host has written and no grid counts for
  // nothing until one does.
  Conflict read(const void* pointer, size_t bytes, const Accessor& by);
  Conflict write(const void* pointer, size_t bytes, const Accessor& by);
  // From now on reductions of these bytes need an order: they race as other writes do, for a sum is to have its bits.
  void sum_in_order(const void* pointer, size_t bytes);
  bool is_summed_in_order(const void* pointer) const;
  // What the word, as a flag between blocks, hands on to who acquires it.
  Knowledge& flag(const void* pointer) { return flags_[pointer]; }
  // Empty, or the first byte that a grid before the one that runs has written.
  std::string written_by_earlier_grid(const void* pointer, size_t bytes) const;
  // Between the two, what is written is a new grid's; before and after, the host's.
  void begin_grid();
  void end_grid() { writer_ = kHost; }
  // "lse + 16", or the pointer's distance from the nearest allocation below.
  std::string describe(const void* pointer) const;

 private:
  using Writer = uint8_t;
  static constexpr Writer kNobody = 0;
  static constexpr Writer kHost = 1;  // the first grid is 2
  struct Allocation {
    std::string name;
    std::unique_ptr<unsigned char[]> storage;
    size_t bytes;
    std::vector<Writer> written;
    bool changes = true;
    History history;
  };
  // The last allocation that begins at or below the pointer.
  const std::pair<const uintptr_t, Allocation>* below(const void* pointer) const;
  Allocation& of(const void* pointer, uint64_t& offset);
  std::map<uintptr_t, Allocation> allocations_;  // by address
  std::map<const void*, Knowledge> flags_;
  std::map<uintptr_t, size_t> summed_in_order_;  // bytes by address
  Writer writer_ = kHost;
  int grids_ = 0;
};

}  // namespace tandem::model
