#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/operand.h"
#include "engine/site.h"

// The registers that wgmma owns between its issue and its wait.
namespace tandem::model {

// A thread's register, a float's or an integer's.
using Register = uint32_t __attribute__((may_alias));

constexpr int kProductRows = 64;
// What those registers hold meanwhile: a NaN that arithmetic hands on, so that its traces can be told.
constexpr uint32_t kHeldPattern = 0x7fe5a5a5;

// What one thread says of a wgmma.
struct WgmmaCall {
  WgmmaShape shape;
  Register* accumulators = nullptr;  // n / 2
  Register* fragment = nullptr;      // 4, or null: A is in shared memory
  uint64_t descriptor_a = 0;
  uint64_t descriptor_b = 0;
  bool accumulate = false;
};

// What one thread says of an mma.sync m16n8k16.
struct MmaCall {
  ElementType element = ElementType::kBf16;
  float* d = nullptr;           // 4
  const uint32_t* a = nullptr;  // 4
  std::array<uint32_t, 2> b = {};
};

// 64 x n values in the products' care; `registers` are those of each thread of the warpgroup.
struct AccumulatorTile {
  int n = 0;
  uint64_t group = 0;  // the last that writes it
  std::vector<float> values;
  Register* registers[128] = {};
  int returned = 0;  // threads that have their values back
};

// Registers of an A fragment, which keep their value.
struct HeldFragment {
  Register* registers = nullptr;
  std::array<uint32_t, 4> original = {};
  uint64_t group = 0;
};

// An array of registers that a wgmma has used, as it was when the warpgroup last fenced, or got it back.
struct KnownRegisters {
  Register* registers = nullptr;
  std::vector<uint32_t> snapshot;
};

struct ThreadRegisters {
  std::vector<std::shared_ptr<AccumulatorTile>> tiles;  // held
  std::vector<HeldFragment> fragments;                  // held
  std::vector<KnownRegisters> known;
  bool fenced = false;
};

constexpr int kProductRowsOfWarp = 16;

// Shared memory that a wgmma reads, until all threads of the warpgroup have waited for it.
struct ProductRead {
  uint32_t begin;
  uint32_t end;
  bool is_a;  // each warp reads its own rows of it alone
  uint64_t group;
  Site site;
  int threads_to_wait = 128;
};

// A warpgroup's wgmmas under way: the groups they belong to, oldest first. They complete in order.
struct Products {
  std::deque<uint64_t> groups;
  uint64_t last_ready = 0;  // step
  std::vector<ProductRead> reads;
};

}  // namespace tandem::model
