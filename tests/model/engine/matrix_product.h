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

// D += A B of rows of a: (rows, k), b: (k, n), d: (rows, n), with the rounding of the tensor cores.
void add_product(ElementType element, int n, int k, std::vector<float> a, std::vector<float> b, float* d);

// Reads the operands and adds their product to the tile, with the rounding of the tensor cores.
void multiply(const Caller& caller, const Product& product);

}  // namespace tandem::model
