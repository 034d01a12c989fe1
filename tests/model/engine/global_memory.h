#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
  };
  // The last allocation that begins at or below the pointer.
  const std::pair<const uintptr_t, Allocation>* below(const void* pointer) const;
  std::map<uintptr_t, Allocation> allocations_;  // by address
  Writer writer_ = kHost;
  int grids_ = 0;
};

}  // namespace tandem::model
