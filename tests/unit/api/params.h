#pragma once

#include <initializer_list>

#include "tandem/tandem.hpp"

// Valid problems without data, for tests that then break one thing.
namespace tandem {

constexpr auto kBf16 = ElementType::kBf16;
constexpr auto kFp32 = ElementType::kFp32;
constexpr auto kInt32 = ElementType::kInt32;

inline tandem_tensor shaped(ElementType type, std::initializer_list<int64_t> shape) {
  return view(nullptr, type, shape);
}

// batch 2, seqlen 5 and 7, heads 4 and 2, headdim 64 and 32.
inline void fill_attention(tandem_forward_params& params) {
  params.q = shaped(kBf16, {2, 5, 4, 64});
  params.k = shaped(kBf16, {2, 7, 2, 64});
  params.v = shaped(kBf16, {2, 7, 2, 32});
  params.out = shaped(kBf16, {2, 5, 4, 32});
  params.lse = shaped(kFp32, {2, 4, 5});
}

inline void fill_attention(tandem_varlen_forward_params& params) {
  params.q = shaped(kBf16, {9, 4, 64});
  params.k = shaped(kBf16, {11, 2, 64});
  params.v = shaped(kBf16, {11, 2, 32});
  params.out = shaped(kBf16, {9, 4, 32});
  params.lse = shaped(kFp32, {4, 9});
  params.cu_seqlens_q = params.cu_seqlens_k = shaped(kInt32, {3});
}

inline void fill_attention(tandem_backward_params& params) {
  params.q = params.dq = shaped(kBf16, {2, 5, 4, 64});
  params.k = params.dk = shaped(kBf16, {2, 7, 2, 64});
  params.v = params.dv = shaped(kBf16, {2, 7, 2, 32});
  params.out = params.dout = shaped(kBf16, {2, 5, 4, 32});
  params.lse = shaped(kFp32, {2, 4, 5});
}

inline void fill_attention(tandem_varlen_backward_params& params) {
  params.q = params.dq = shaped(kBf16, {9, 4, 64});
  params.k = params.dk = shaped(kBf16, {11, 2, 64});
  params.v = params.dv = shaped(kBf16, {11, 2, 32});
  params.out = params.dout = shaped(kBf16, {9, 4, 32});
  params.lse = shaped(kFp32, {4, 9});
  params.cu_seqlens_q = params.cu_seqlens_k = shaped(kInt32, {3});
}

template <class Params>
Params valid_attention() {
  Params params;
  fill_attention(params);
  return params;
}

inline MergeParams valid_merge() {  // 3 parts
  MergeParams params;
  params.out_partial = shaped(kFp32, {3, 2, 5, 4, 32});
  params.lse_partial = shaped(kFp32, {3, 2, 4, 5});
  params.out = shaped(kBf16, {2, 5, 4, 32});
  params.lse = shaped(kFp32, {2, 4, 5});
  return params;
}

inline MergeParams valid_packed_merge() {
  MergeParams params;
  params.out_partial = shaped(kFp32, {3, 9, 4, 32});
  params.lse_partial = shaped(kFp32, {3, 4, 9});
  params.out = shaped(kBf16, {9, 4, 32});
  params.lse = shaped(kFp32, {4, 9});
  return params;
}

}  // namespace tandem
