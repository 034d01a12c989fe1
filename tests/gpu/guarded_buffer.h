#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "pool_buffer.h"
#include "tandem/tandem.h"

namespace tandem::gpu_test {

// Device memory between two guards; all of it, guards too, holds bytes 0xff after fill(0xff).
class GuardedBuffer {
 public:
  static constexpr size_t kGuardBytes = 256;

  GuardedBuffer() = default;  // nothing, not even guards
  explicit GuardedBuffer(size_t bytes) : buffer_(bytes + 2 * kGuardBytes) {}

  size_t bytes() const { return buffer_.bytes() == 0 ? 0 : buffer_.bytes() - 2 * kGuardBytes; }
  template <typename T>
  T* as() const {  // nullptr for nothing
    return buffer_.bytes() == 0 ? nullptr : reinterpret_cast<T*>(buffer_.as<char>() + kGuardBytes);
  }
  void fill(int byte) const { buffer_.fill(byte); }
  bool guards_intact() const {
    return buffer_.bytes() == 0 || (is_intact(0) && is_intact(buffer_.bytes() - kGuardBytes));
  }

 private:
  bool is_intact(size_t begin) const {
    std::vector<unsigned char> guard(kGuardBytes);
    TANDEM_CHECK_CUDA(cudaMemcpy(guard.data(), buffer_.as<char>() + begin, kGuardBytes, cudaMemcpyDeviceToHost));
    return std::all_of(guard.begin(), guard.end(), [](unsigned char byte) { return byte == 0xff; });
  }

  PoolBuffer buffer_;
};

// The scratch memory that a call asks for; throws the library's sentence.
template <typename Params>
GuardedBuffer make_workspace(const Params& params, tandem_status (*ask)(const Params*, uint64_t*, uint64_t*)) {
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  if (ask(&params, &bytes, &alignment) != TANDEM_OK) throw std::runtime_error(tandem_last_error());
  if (alignment > GuardedBuffer::kGuardBytes) throw std::runtime_error("the workspace wants a larger alignment");
  return GuardedBuffer(bytes);
}

}  // namespace tandem::gpu_test
