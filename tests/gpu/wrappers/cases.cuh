#pragma once

#include "wrappers/cluster_cases.cuh"
#include "wrappers/grid_cases.cuh"
#include "wrappers/math_cases.cuh"
#include "wrappers/memory_cases.cuh"
#include "wrappers/mma_cases.cuh"
#include "wrappers/tma_cases.cuh"
#include "wrappers/warp_cases.cuh"
#include "wrappers/wgmma_cases.cuh"
#include "wrappers/wgmma_rows_case.cuh"

namespace tandem::sm90::wrappers {

// Calls visit(Case{}) for each case, in the order of the golden file.
template <typename Visit>
void for_each_case(Visit visit) {
  using ptx::Major;
  constexpr Major kK = Major::kK;
  constexpr Major kMn = Major::kMn;
  constexpr bool kShared = false;  // where A lies
  constexpr bool kRegisters = true;
  constexpr Swizzle k64 = Swizzle::k64Bytes;
  constexpr Swizzle k128 = Swizzle::k128Bytes;

  visit(Indices{});
  visit(Shuffles{});
  visit(MbarrierRing{});
  visit(MbarrierPhases{});
  visit(NamedBarriers{});

  visit(UnaryCase<Ex2Function>{});
  visit(UnaryCase<Lg2Function>{});
  visit(UnaryCase<RcpFunction>{});
  visit(UnaryCase<TanhFunction>{});
  visit(ExactArithmetic{});
  visit(Packing{});

  visit(Accesses{});
  visit(Matrices<false, false>{});
  visit(Matrices<false, true>{});
  visit(Matrices<true, false>{});
  visit(Matrices<true, true>{});
  visit(Atomics{});

  visit(TmaLoad<2, k128>{});
  visit(TmaLoad<3, k128>{});
  visit(TmaLoad<4, k128>{});
  visit(TmaLoad<5, k128>{});
  visit(TmaLoad<2, k64>{});
  visit(TmaLoad<4, k64>{});
  visit(TmaLoad<4, k128, 4>{});
  visit(TmaStore<2>{});
  visit(TmaStore<3>{});
  visit(TmaStore<4>{});
  visit(TmaStore<5>{});
  visit(BulkCopies{});

  visit(WgmmaCase<Bf16, 8, kShared, kK, kK>{});
  visit(WgmmaCase<Bf16, 80, kShared, kK, kK, k64>{});
  visit(WgmmaCase<Bf16, 176, kShared, kK, kK>{});
  visit(WgmmaCase<Bf16, 64, kShared, kMn, kMn>{});
  visit(WgmmaCase<Bf16, 128, kShared, kMn, kK>{});
  visit(WgmmaCase<Bf16, 96, kShared, kMn, kMn, k64>{});
  visit(WgmmaCase<Bf16, 256, kShared, kK, kMn>{});
  visit(WgmmaCase<Bf16, 192, kRegisters, kK, kMn>{});
  visit(WgmmaCase<Bf16, 160, kRegisters, kK, kMn, k64>{});
  visit(WgmmaCase<Bf16, 32, kRegisters, kK, kK>{});
  visit(WgmmaCase<Fp16, 16, kShared, kK, kK>{});
  visit(WgmmaCase<Fp16, 64, kRegisters, kK, kMn>{});
  visit(WgmmaCase<E4m3, 96, kShared, kK, kK>{});
  visit(WgmmaCase<E4m3, 64, kRegisters, kK, kK>{});
  visit(WgmmaCase<Bf16, 64, kShared, kK, kK, k128, Values::kReals>{});
  visit(WgmmaCase<Fp16, 32, kRegisters, kK, kK, k128, Values::kReals>{});
  visit(WgmmaCase<E4m3, 32, kShared, kK, kK, k128, Values::kReals>{});

  visit(WgmmaOwnRows<kK>{});
  visit(WgmmaOwnRows<kMn>{});

  visit(ClusterExchange{});
  visit(ClusterOwnLoad{});
  visit(TmaMulticast<2>{});
  visit(TmaMulticast<3>{});
  visit(TmaMulticast<4>{});
  visit(TmaMulticast<5>{});

  visit(MmaCase<Bf16, Values::kIntegers>{});
  visit(MmaCase<Fp16, Values::kIntegers>{});
  visit(MmaCase<Bf16, Values::kReals>{});
  visit(MmaCase<Fp16, Values::kReals>{});
  visit(MmaOfTiles<k128, 128>{});
  visit(MmaOfTiles<k64, 192>{});

  visit(GridDependency{});
  visit(BytesAndMaxima{});
}

}  // namespace tandem::sm90::wrappers
