#pragma once

#include <cstdint>

namespace tandem {

// Hands out pieces of the caller's workspace, each aligned to a cache line (and so to every vector). The function that
// takes the pieces also measures them: with a null base it returns null pointers and bytes() counts all the same.
class Arena {
 public:
  static constexpr uint64_t kAlignment = 64;

  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<uint64_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  uint64_t bytes() const { return used_; }

 private:
  char* base_;
  uint64_t used_ = 0;
};

// Row lengths of scratch matrices, in elements. A row that is whole vectors on every target:
template <typename T>
constexpr int64_t padded_row(int64_t length) {
  constexpr int64_t kLine = static_cast<int64_t>(Arena::kAlignment / sizeof(T));
  return (length + kLine - 1) / kLine * kLine;
}

// The same for matrices that are read down a column: an odd number of cache lines, so that a column of them spreads
// over all sets of the L1 cache.
template <typename T>
constexpr int64_t spread_row(int64_t length) {
  constexpr int64_t kLine = static_cast<int64_t>(Arena::kAlignment / sizeof(T));
  const int64_t padded = padded_row<T>(length);
  return padded / kLine % 2 == 1 ? padded : padded + kLine;
}

}  // namespace tandem
