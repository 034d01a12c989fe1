#include "engine/matrix_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tandem::model {
namespace {

constexpr uint32_t kChunkBytes = 16;

int element_bytes(ElementType type) {
  return type == ElementType::kE4m3 ? 1 : 2;
}

void decode_chunk(const Caller& caller, ElementType type, uint32_t address, float* values, int step) {
  const uint8_t* bytes = read_shared_async(caller, *caller.thread.block, address, kChunkBytes);
  const int size = element_bytes(type);
  for (int i = 0; i < static_cast<int>(kChunkBytes) / size; ++i)
    values[i * step] = decode_element(type, bytes + i * size);
}

// values[index * k_stride + k * 1], or transposed, by the two strides given. `readers`: of 16 indices each in turn.
void decode_shared(const std::vector<Caller>& readers, const WgmmaShape& shape, uint64_t bits, bool mn_major,
                   int extent, float* values, int index_step, int k_step) {
  const MatrixDescriptor descriptor(bits);
  const int per_chunk = static_cast<int>(kChunkBytes) / element_bytes(shape.element);
  const auto reader_of = [&](int index) -> const Caller& {
    return readers[static_cast<size_t>(index / kProductRowsOfWarp) % readers.size()];
  };
  if (mn_major) {
    for (int k = 0; k < shape.k(); ++k) {
      for (int index = 0; index < extent; index += per_chunk) {
        decode_chunk(reader_of(index), shape.element, mn_major_chunk(descriptor, index, k),
                     values + index * index_step + k * k_step, index_step);
      }
    }
    return;
  }
  for (int index = 0; index < extent; ++index) {
    for (int k = 0; k < shape.k(); k += per_chunk) {
      decode_chunk(reader_of(index), shape.element, k_major_chunk(descriptor, index, k * element_bytes(shape.element)),
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

// The tensor core's sum of one instruction, as the H200's results show it: all products and the accumulator are cut,
// not rounded, to so many bits below the largest one's exponent, added exactly, and the sum is cut to the accumulator's
// bits.
struct Precision {
  int term_bits;
  int result_bits;
};
Precision precision_of(ElementType type) {
  return type == ElementType::kE4m3 ? Precision{13, 13} : Precision{25, 23};
}

constexpr int kZeroExponent = -10'000;
constexpr int kSpecialExponent = 1'000'000;  // of infinities and NaNs

int exponent_of(float x) {
  const double wide = x;  // a normal number
  uint64_t bits;
  std::memcpy(&bits, &wide, sizeof(bits));
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  return x == 0 ? kZeroExponent : exponent == 1024 ? kSpecialExponent : exponent;
}

std::vector<int> exponents_of(const std::vector<float>& values) {
  std::vector<int> exponents(values.size());
  std::transform(values.begin(), values.end(), exponents.begin(), exponent_of);
  return exponents;
}

double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

float cut(double sum, int fraction_bits) {
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof(bits));
  bits &= ~uint64_t{0} << (52 - fraction_bits);
  std::memcpy(&sum, &bits, sizeof(sum));
  return static_cast<float>(sum);
}

// Operands of one product: A as [row][k], B as [k][column].
struct Operands {
  int n, k;
  Precision precision;
  std::vector<float> a, b;
  std::vector<int> a_exponents, b_exponents;
  std::vector<float> finite_a, finite_b;  // with 0 for infinities and NaNs
};

std::vector<float> finite_part(std::vector<float> values) {
  for (float& value : values) {
    if (!std::isfinite(value)) value = 0;
  }
  return values;
}

double plain_sum(const Operands& operands, int row, int column, double sum) {
  for (int i = 0; i < operands.k; ++i) {
    sum += static_cast<double>(operands.a[row * operands.k + i]) * operands.b[i * operands.n + column];
  }
  return sum;
}

// As wide as the machine's vectors are, which changes no bit.
#ifdef __x86_64__
#define TANDEM_MODEL_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TANDEM_MODEL_VECTORS
#endif

// d: the row's accumulators, in and out.
TANDEM_MODEL_VECTORS void multiply_row(const Operands& operands, int row, float* d) {
  const int n = operands.n;
  const auto [term_bits, result_bits] = operands.precision;
  std::vector<int> largest(n);
  std::transform(d, d + n, largest.begin(), exponent_of);
  for (int i = 0; i < operands.k; ++i) {
    const int a_exponent = operands.a_exponents[row * operands.k + i];
    const int* b_exponents = &operands.b_exponents[i * n];
    for (int column = 0; column < n; ++column) {
      largest[column] = std::max(largest[column], a_exponent + b_exponents[column]);
    }
  }
  std::vector<double> scales(n);
  std::vector<double> sums(n);  // of integers, exact
  for (int column = 0; column < n; ++column) {
    constexpr int kLimit = 500;  // beyond the exponents of products: zeros and specials, which need no scale
    scales[column] = power_of_two(term_bits - std::clamp(largest[column], -kLimit, kLimit));
    sums[column] = largest[column] > kLimit ? 0 : static_cast<int32_t>(d[column] * scales[column]);
  }
  for (int i = 0; i < operands.k; ++i) {
    const double factor = operands.finite_a[row * operands.k + i];
    const float* line = &operands.finite_b[i * n];
    for (int column = 0; column < n; ++column) {
      sums[column] += static_cast<int32_t>(factor * line[column] * scales[column]);
    }
  }
  for (int column = 0; column < n; ++column) {
    const bool special = largest[column] > kSpecialExponent / 2;
    d[column] = special ? static_cast<float>(plain_sum(operands, row, column, d[column]))
                        : cut(sums[column] / scales[column], result_bits);
  }
}

}  // namespace

void add_product(ElementType element, int n, int k, std::vector<float> a, std::vector<float> b, float* d) {
  Operands operands;
  operands.n = n;
  operands.k = k;
  operands.precision = precision_of(element);
  operands.a_exponents = exponents_of(a);
  operands.b_exponents = exponents_of(b);
  operands.finite_a = finite_part(a);
  operands.finite_b = finite_part(b);
  operands.a = std::move(a);
  operands.b = std::move(b);
  const auto rows = static_cast<int>(operands.a.size()) / k;
  for (int row = 0; row < rows; ++row) multiply_row(operands, row, d + row * n);
}

void multiply(const Caller& caller, const Product& product) {
  // Each warp's part of the product is its 16 rows: it reads those of A, and all of B.
  std::vector<Issue> parts(caller.issue->parties, *caller.issue);
  std::vector<Caller> part_readers;
  for (uint32_t warp = 0; warp < parts.size(); ++warp) {
    parts[warp].stamp.party += warp;
    parts[warp].parties = 1;
    part_readers.push_back({caller.thread, caller.op, caller.site, &parts[warp]});
  }
  const WgmmaShape& shape = product.call.shape;
  std::vector<float> a(kProductRows * shape.k());
  std::vector<float> b(shape.k() * shape.n);
  if (product.fragments.empty()) {
    decode_shared(part_readers, shape, product.call.descriptor_a, shape.a_mn_major, kProductRows, a.data(), shape.k(),
                  1);
  } else {
    decode_fragments(shape, product.fragments, a.data());
  }
  decode_shared({caller}, shape, product.call.descriptor_b, shape.b_mn_major, shape.n, b.data(), 1, shape.n);
  std::vector<float>& d = product.tile->values;
  if (!product.call.accumulate) std::fill(d.begin(), d.end(), 0.0f);
  add_product(shape.element, shape.n, shape.k(), std::move(a), std::move(b), d.data());
}

}  // namespace tandem::model
