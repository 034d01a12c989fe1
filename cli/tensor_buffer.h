#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::cli {

// Elements or bytes of a contiguous tensor; nothing if an extent is negative or the count does not fit 63 bits.
std::optional<int64_t> checked_element_count(const std::vector<int64_t>& shape);
std::optional<int64_t> checked_byte_count(int32_t dtype, const std::vector<int64_t>& shape);

std::string shape_text(const std::vector<int64_t>& shape);  // "(2, 128, 4, 64)"

// A contiguous tensor in memory that it owns. Elements are uninitialised until written.
class TensorBuffer {
 public:
  TensorBuffer() = default;  // absent
  TensorBuffer(int32_t dtype, std::vector<int64_t> shape);

  bool present() const { return dtype_ != TANDEM_DTYPE_NONE; }
  int32_t dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }  // elements
  int64_t bytes() const;
  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }

  double at(int64_t index) const;
  void set(int64_t index, double value);
  void fill(double value);
  std::vector<double> to_doubles() const;
  TensorBuffer converted(int32_t dtype) const;

  tandem_tensor view() const;  // all zero if absent

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  int32_t dtype_ = TANDEM_DTYPE_NONE;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
  std::unique_ptr<char, Free> data_;  // aligned to 64 bytes
};

}  // namespace tandem::cli
