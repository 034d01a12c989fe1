#pragma once

#include "engine/access.h"
#include "engine/products.h"

namespace tandem::model {

// One wgmma, as its warpgroup has issued it.
struct Product {
  WgmmaCall call;
  std::shared_ptr<AccumulatorTile> tile;
  std::vector<std::array<uint32_t, 4>> fragments;  // of each thread; empty: A is in shared memory
};

// Reads the operands and adds their product to the tile, with the rounding of the tensor cores.
void multiply(const Caller& caller, const Product& product);

}  // namespace tandem::model
