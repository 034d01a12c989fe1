// mma.sync: the matrix product of one warp, in registers.

#include <cstring>

#include "engine/api.h"
#include "engine/collective.h"
#include "engine/matrix_product.h"

namespace tandem::model {
namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kDepth = 16;

// The two elements of a register.
void decode_pair(ElementType element, uint32_t bits, float* values, int step) {
  uint8_t bytes[4];
  std::memcpy(bytes, &bits, sizeof(bits));
  values[0] = decode_element(element, bytes);
  values[step] = decode_element(element, bytes + 2);
}

// All threads are here.
void multiply_warp(const Warp& warp) {
  const ElementType element = warp.threads[0]->mma_call.element;
  std::vector<float> a(kRows * kDepth);
  std::vector<float> b(kDepth * kColumns);
  std::vector<float> d(kRows * kColumns);
  const auto result = [&d](int lane, int i) -> float& {
    return d[(lane / 4 + i / 2 * 8) * kColumns + lane % 4 * 2 + i % 2];
  };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const MmaCall& call = warp.threads[lane]->mma_call;
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r % 2 * 8;
      decode_pair(element, call.a[r], &a[row * kDepth + lane % 4 * 2 + r / 2 * 8], 1);
      result(lane, r) = call.d[r];
    }
    for (int r = 0; r < 2; ++r) {
      decode_pair(element, call.b[r], &b[(lane % 4 * 2 + r * 8) * kColumns + lane / 4], kColumns);
    }
  }
  add_product(element, kColumns, kDepth, std::move(a), std::move(b), d.data());
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) warp.threads[lane]->mma_call.d[i] = result(lane, i);
  }
}

}  // namespace

void mma(ElementType element, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kMma, {}, site).times == 0) return;
  for (int i = 0; i < 4; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &d[i], sizeof(bits));
    check_not_held(bits, site);
    check_not_held(a[i], site);
  }
  check_not_held(b0, site);
  check_not_held(b1, site);
  machine.self().mma_call = {element, d, a, {b0, b1}};
  if (!gather(Op::kMma, {}, site)) return;
  Warp& warp = *machine.self().warp;
  multiply_warp(warp);
  release(warp);
}

}  // namespace tandem::model
