#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::optest {

using Shape = std::vector<int64_t>;

// How a tensor lies in memory. Default: contiguous.
struct Layout {
  std::vector<int> order;             // axes from slowest to fastest; empty: as in the shape
  int64_t padding = 0;                // elements left free after each run of the fastest axis
  int64_t offset = 0;                 // elements by which the base is moved off its alignment
  std::vector<int> broadcast;         // axes of stride 0 (inputs only)
  bool huge_strides_on_ones = false;  // axes of size 1 get stride 2^40
  int slices = 1;                     // the tensor is slice number `slice` of that many, interleaved before the last
  int slice = 0;                      // two axes, as q, k, v in (batch, seqlen, 3, nheads, headdim)
};

// A tensor in storage of its own, between guard bands. Whatever the view does not address is NaN (every byte 0xff).
class HostTensor {
 public:
  HostTensor() = default;  // absent
  HostTensor(Shape shape, int32_t dtype, const Layout& layout = {});

  bool present() const { return !shape_.empty(); }
  tandem_tensor view() { return view_in(storage_.data()); }
  // The tensor, guard bands and all, as bytes; and the view of a copy of them.
  std::vector<uint8_t>& storage() { return storage_; }
  tandem_tensor view_in(uint8_t* storage) const;
  int32_t dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t count() const;

  // Values in the order of the shape, last axis fastest. In a broadcast tensor the last write to an element wins.
  double get(int64_t flat) const;
  void set(int64_t flat, double value);
  std::vector<double> values() const;

  // Remembers the present bytes. `changes` then says what has been written since where nothing may be: anywhere
  // (inputs), or outside the elements of the view (outputs). Empty: nothing.
  void snapshot();
  std::string changes_anywhere() const;
  std::string changes_outside_view() const;

 private:
  int64_t element_of(int64_t flat) const;
  std::vector<int64_t> elements() const;  // element_of every flat index

  Shape shape_;
  Shape stride_;
  int32_t dtype_ = TANDEM_DTYPE_NONE;
  int64_t first_element_ = 0;
  std::vector<uint8_t> storage_;
  std::vector<uint8_t> before_;
};

}  // namespace tandem::optest
