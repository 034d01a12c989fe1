#pragma once

#include <vector>

#include "engine/access.h"
#include "engine/api.h"

// Boxes of tensor maps, by the PTX ISA: Tensors: Tensor Dimension, Bounding Box, Out of Boundary Access, Swizzling
// Modes.
namespace tandem::model {

// One box of a tensor, at a place in shared memory: rows of box[0] elements, one after the other.
struct Box {
  TensorMapSpec spec;
  uint32_t smem;
  Coordinates corner;
  uint32_t row_bytes() const;
  uint32_t rows() const;
  uint32_t bytes() const { return row_bytes() * rows(); }
};

const TensorMapSpec& check_map(const Caller& caller, const sm90::ptx::TensorMap& map);
// Reports what the copy engine refuses.
Box check_box(const Caller& caller, const sm90::ptx::TensorMap& map, uint32_t smem, Coordinates corner);
// Coordinates of loads may be negative; those of stores may not: an illegal instruction on the H200.
void check_store_corner(const Caller& caller, Coordinates corner);

void load_box(const Caller& caller, const Box& box, Block& block);      // what is outside becomes zero
std::vector<uint8_t> gather_box(const Caller& caller, const Box& box);  // rows one after the other, from shared
void store_box(const Caller& caller, const Box& box, const std::vector<uint8_t>& data);  // what is outside stays

}  // namespace tandem::model
