#include "engine/matrix_product.h"

#include <algorithm>

namespace tandem::model {
namespace {

constexpr uint32_t kChunkBytes = 16;

int element_bytes(ElementType type) {
  return type == ElementType::kE4m3 ? 1 : 2;
}

void decode_chunk(const Caller& caller, ElementType type, uint32_t address, float* values, int step) {
  const uint8_t* bytes = read_shared(caller, *caller.thread.block, address, kChunkBytes);
  const int size = element_bytes(type);
  for (int i = 0; i < static_cast<int>(kChunkBytes) / size; ++i)
    values[i * step] = decode_element(type, bytes + i * size);
}

// values[index * k_stride + k * 1], or transposed, by the two strides given.
void decode_shared(const Caller& caller, const WgmmaShape& shape, uint64_t bits, bool mn_major, int extent,
                   float* values, int index_step, int k_step) {
  const MatrixDescriptor descriptor(bits);
  const int per_chunk = static_cast<int>(kChunkBytes) / element_bytes(shape.element);
  if (mn_major) {
    for (int k = 0; k < shape.k(); ++k) {
      for (int index = 0; index < extent; index += per_chunk) {
        decode_chunk(caller, shape.element, mn_major_chunk(descriptor, index, k),
                     values + index * index_step + k * k_step, index_step);
      }
    }
    return;
  }
  for (int index = 0; index < extent; ++index) {
    for (int k = 0; k < shape.k(); k += per_chunk) {
      decode_chunk(caller, shape.element, k_major_chunk(descriptor, index, k * element_bytes(shape.element)),
                   values + index * index_step + k * k_step, k_step);
    }
  }
}

// Register r of thread t of warp w holds 4 bytes of row 16w + t/4 + 8 (r % 2), from byte 4 (t % 4) + 16 (r / 2) of K.
void decode_fragments(const WgmmaShape& shape, const std::vector<std::array<uint32_t, 4>>& fragments, float* a) {
  const int size = element_bytes(shape.element);
  for (int rank = 0; rank < kWarpgroupSize; ++rank) {
    for (int r = 0; r < 4; ++r) {
      const int row = rank / 32 * 16 + rank % 32 / 4 + r % 2 * 8;
      const int byte = rank % 4 * 4 + r / 2 * 16;
      const auto* bytes = reinterpret_cast<const uint8_t*>(&fragments[rank][r]);
      for (int i = 0; i < 4; i += size) {
        a[row * shape.k() + (byte + i) / size] = decode_element(shape.element, bytes + i);
      }
    }
  }
}

}  // namespace

void multiply(const Caller& caller, const Product& product) {
  const WgmmaShape& shape = product.call.shape;
  const int n = shape.n;
  const int k = shape.k();
  std::vector<float> a(kProductRows * k);  // [row][k]
  std::vector<float> b(k * n);             // [k][column]
  if (product.fragments.empty()) {
    decode_shared(caller, shape, product.call.descriptor_a, shape.a_mn_major, kProductRows, a.data(), k, 1);
  } else {
    decode_fragments(shape, product.fragments, a.data());
  }
  decode_shared(caller, shape, product.call.descriptor_b, shape.b_mn_major, n, b.data(), 1, n);
  std::vector<double> sums(n);
  for (int row = 0; row < kProductRows; ++row) {
    float* d = product.tile->values.data() + row * n;
    for (int column = 0; column < n; ++column) sums[column] = product.call.accumulate ? d[column] : 0.0;
    for (int i = 0; i < k; ++i) {
      const double factor = a[row * k + i];
      const float* line = b.data() + i * n;
      for (int column = 0; column < n; ++column) sums[column] += factor * line[column];
    }
    std::transform(sums.begin(), sums.end(), d, [](double sum) { return static_cast<float>(sum); });
  }
}

}  // namespace tandem::model
