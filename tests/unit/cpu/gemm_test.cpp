#include "cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/cpu/gemm_test.cpp"
#include "hwy/foreach_target.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cpu/simd/gemm-inl.h"
#include "hwy/aligned_allocator.h"
#include "tests/unit/cpu/each_target.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {

// One product on values that are small integers: every sum is exact, so the double loop's result is the only right one.
template <typename T, ALayout kLayout>
void check_product(size_t rows, size_t vecs, size_t depth, bool accumulate) {
  const size_t lanes = vecs * hn::Lanes(Lanes<T>());
  const size_t ldb = lanes + 64 / sizeof(T);
  const size_t ldc = lanes + 128 / sizeof(T);
  const size_t a_stride = (kLayout == ALayout::kRowsAdjacent ? rows : depth) + 3;
  const size_t a_size = a_stride * (kLayout == ALayout::kRowsAdjacent ? depth : rows);
  std::mt19937 random(static_cast<unsigned>(rows * 1000 + depth));
  std::uniform_int_distribution<int> digit(-8, 8);
  const auto fill = [&](size_t count) {
    auto values = hwy::AllocateAligned<T>(count + 1);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(digit(random));
    return values;
  };
  const auto a = fill(a_size);
  const auto b = fill(depth * ldb);
  const auto c = fill(rows * ldc);
  std::vector<T> expected(c.get(), c.get() + rows * ldc);  // what lies between the rows must stay
  for (size_t i = 0; i < rows; ++i) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      T sum = accumulate ? expected[i * ldc + lane] : T(0);
      for (size_t k = 0; k < depth; ++k) {
        const size_t at = kLayout == ALayout::kRowsAdjacent ? k * a_stride + i : i * a_stride + k;
        sum += a[at] * b[k * ldb + lane];
      }
      expected[i * ldc + lane] = sum;
    }
  }
  if (!accumulate) {  // overwritten, whatever it held
    for (size_t i = 0; i < rows; ++i) std::fill_n(c.get() + i * ldc, lanes, std::numeric_limits<T>::quiet_NaN());
  }
  gemm<kLayout, T>(rows, vecs, {depth, a.get(), a_stride, b.get(), ldb, c.get(), ldc, accumulate});
  ASSERT_EQ(std::memcmp(c.get(), expected.data(), expected.size() * sizeof(T)), 0)
      << "rows " << rows << ", vecs " << vecs << ", depth " << depth << ", accumulate " << accumulate;
}

template <typename T, ALayout kLayout>
void check_products() {
  for (size_t vecs = 1; vecs <= 5; ++vecs) {
    for (size_t rows = 1; rows <= 2 * kBlockRows + 1; ++rows) {  // every remainder block
      for (const size_t depth : {size_t{1}, size_t{2}, size_t{7}, size_t{65}}) {
        check_product<T, kLayout>(rows, vecs, depth, rows % 2 == 0);
        check_product<T, kLayout>(rows, vecs, depth, rows % 2 != 0);
      }
    }
  }
}

void check_gemm() {
  check_products<float, ALayout::kDepthAdjacent>();
  check_products<float, ALayout::kRowsAdjacent>();
  check_products<double, ALayout::kDepthAdjacent>();
  check_products<double, ALayout::kRowsAdjacent>();
}

// An empty product is 0, or leaves C as it is.
void check_empty_depth() {
  check_product<float, ALayout::kDepthAdjacent>(5, 3, 0, true);
  check_product<float, ALayout::kDepthAdjacent>(5, 3, 0, false);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tandem {
namespace {

HWY_EXPORT(check_gemm);
HWY_EXPORT(check_empty_depth);

TEST(Gemm, EqualsADoubleLoopForEveryRemainder) {
  for_each_target([] { HWY_DYNAMIC_DISPATCH(check_gemm)(); });
}

TEST(Gemm, OfDepthZero) {
  for_each_target([] { HWY_DYNAMIC_DISPATCH(check_empty_depth)(); });
}

}  // namespace
}  // namespace tandem

#endif  // HWY_ONCE
