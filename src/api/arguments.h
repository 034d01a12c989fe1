#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "api/text.h"
#include "core/status.h"
#include "tandem/tandem.h"

// The caller's structs as the checks see them. The four attention structs differ in which tensors they have, and in
// nothing else; gather() shows all of them through one form, in which a tensor that a struct lacks is an absent one.
namespace tandem {

// Larger than any struct will ever be; a struct_size beyond it was never set.
constexpr uint64_t kMaxStructBytes = 1 << 16;

// sizeof when the struct was first published, which callers may still pass. Frozen: fields are added behind it.
template <class Params>
inline constexpr uint64_t kFirstBytes = 0;
template <>
inline constexpr uint64_t kFirstBytes<tandem_forward_params> = 1584;
template <>
inline constexpr uint64_t kFirstBytes<tandem_varlen_forward_params> = 1824;
template <>
inline constexpr uint64_t kFirstBytes<tandem_backward_params> = 1920;
template <>
inline constexpr uint64_t kFirstBytes<tandem_varlen_backward_params> = 2160;
template <>
inline constexpr uint64_t kFirstBytes<tandem_merge_params> = 624;
template <>
inline constexpr uint64_t kFirstBytes<tandem_quantize_fp8_params> = 984;

// Copies the caller's struct, of whatever age, into the form this library knows. Bytes that the caller lacks are zero;
// bytes that the library does not know must be.
template <class Params>
Status read_struct(const Params* params, Params* copy) {
  static_assert(0 < kFirstBytes<Params> && kFirstBytes<Params> <= sizeof(Params));
  if (params == nullptr) return Status::invalid_argument("params is NULL; it must point to a parameter struct");
  uint64_t bytes;
  std::memcpy(&bytes, params, sizeof bytes);
  if (bytes < kFirstBytes<Params> || bytes > kMaxStructBytes) {
    return Status::invalid_argument(concat("struct_size is ", bytes, "; it must be the sizeof of the struct, which is ",
                                           sizeof(Params), " in version ", TANDEM_VERSION_MAJOR, ".",
                                           TANDEM_VERSION_MINOR, ".", TANDEM_VERSION_PATCH));
  }
  *copy = {};
  std::memcpy(static_cast<void*>(copy), params, bytes < sizeof(Params) ? bytes : sizeof(Params));
  const unsigned char* raw = reinterpret_cast<const unsigned char*>(params);
  for (uint64_t i = sizeof(Params); i < bytes; ++i) {
    if (raw[i] != 0) {
      return Status::unsupported(concat("struct_size is ", bytes, " and byte ", i, " is set, but this library knows ",
                                        sizeof(Params),
                                        " bytes; it is older than the header that asks for this option"));
    }
  }
  return Status::ok();
}

constexpr tandem_tensor kAbsentTensor{};

enum class Access { kInput, kOutput };

struct NamedTensor {
  const char* name = "";
  const tandem_tensor* tensor = &kAbsentTensor;
  Access access = Access::kInput;

  bool present() const { return tensor->ndim != 0; }
};

struct AttentionArguments {
  bool backward = false;
  bool packed = false;

  NamedTensor q, k, v, out, lse, sink;
  NamedTensor q_scale, k_scale, v_scale;      // forward
  NamedTensor dout, dlse, dq, dk, dv, dsink;  // backward
  NamedTensor cu_seqlens_q, cu_seqlens_k;     // packed
  NamedTensor seqused_q, seqused_k, lo, hi;
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;  // packed

  const tandem_execution* exec = nullptr;
  const tandem_mask* mask = nullptr;
  double softmax_scale = 0;
  double softcap = 0;
  int32_t has_softmax_scale = 0;
  int32_t reserved = 0;
  int32_t v_transposed = 0;  // forward
  int32_t reserved_2 = 0;    // forward

  std::array<NamedTensor, 21> tensors() const {
    return {q,  k,  v,  out,   lse,          sink,         q_scale,   k_scale,   v_scale, dout, dlse,
            dq, dk, dv, dsink, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, lo,      hi};
  }
};

struct MergeArguments {
  NamedTensor out_partial, lse_partial, sink, out, lse;
  const tandem_execution* exec = nullptr;

  std::array<NamedTensor, 5> tensors() const { return {out_partial, lse_partial, sink, out, lse}; }
};

struct QuantizeArguments {
  NamedTensor x, out, scale, cu_seqlens, seqused, rotary_cos, rotary_sin, rotary_offset;
  const tandem_quantize_fp8_params* params = nullptr;

  std::array<NamedTensor, 8> tensors() const {
    return {x, out, scale, cu_seqlens, seqused, rotary_cos, rotary_sin, rotary_offset};
  }
};

// The result points into `params`.
template <class Params>
AttentionArguments gather(const Params& params) {
  constexpr bool kPacked =
      std::is_same_v<Params, tandem_varlen_forward_params> || std::is_same_v<Params, tandem_varlen_backward_params>;
  constexpr bool kBackward =
      std::is_same_v<Params, tandem_backward_params> || std::is_same_v<Params, tandem_varlen_backward_params>;
  constexpr Access kForwardResult = kBackward ? Access::kInput : Access::kOutput;

  AttentionArguments arguments;
  arguments.packed = kPacked;
  arguments.backward = kBackward;
  arguments.q = {"q", &params.q};
  arguments.k = {"k", &params.k};
  arguments.v = {"v", &params.v};
  arguments.out = {"out", &params.out, kForwardResult};
  arguments.lse = {"lse", &params.lse, kForwardResult};
  arguments.sink = {"sink", &params.sink};
  if constexpr (kBackward) {
    arguments.dout = {"dout", &params.dout};
    arguments.dlse = {"dlse", &params.dlse};
    arguments.dq = {"dq", &params.dq, Access::kOutput};
    arguments.dk = {"dk", &params.dk, Access::kOutput};
    arguments.dv = {"dv", &params.dv, Access::kOutput};
    arguments.dsink = {"dsink", &params.dsink, Access::kOutput};
  } else {
    arguments.q_scale = {"q_scale", &params.q_scale};
    arguments.k_scale = {"k_scale", &params.k_scale};
    arguments.v_scale = {"v_scale", &params.v_scale};
    arguments.v_transposed = params.v_transposed;
    arguments.reserved_2 = params.reserved_2;
  }
  if constexpr (kPacked) {
    arguments.cu_seqlens_q = {"cu_seqlens_q", &params.cu_seqlens_q};
    arguments.cu_seqlens_k = {"cu_seqlens_k", &params.cu_seqlens_k};
    arguments.max_seqlen_q = params.max_seqlen_q;
    arguments.max_seqlen_k = params.max_seqlen_k;
  }
  arguments.seqused_q = {"seqused_q", &params.seqused_q};
  arguments.seqused_k = {"seqused_k", &params.seqused_k};
  arguments.lo = {"mask.lo", &params.mask.lo};
  arguments.hi = {"mask.hi", &params.mask.hi};
  arguments.exec = &params.exec;
  arguments.mask = &params.mask;
  arguments.softmax_scale = params.softmax_scale;
  arguments.softcap = params.softcap;
  arguments.has_softmax_scale = params.has_softmax_scale;
  arguments.reserved = params.reserved;
  return arguments;
}

inline MergeArguments gather(const tandem_merge_params& params) {
  MergeArguments arguments;
  arguments.out_partial = {"out_partial", &params.out_partial};
  arguments.lse_partial = {"lse_partial", &params.lse_partial};
  arguments.sink = {"sink", &params.sink};
  arguments.out = {"out", &params.out, Access::kOutput};
  arguments.lse = {"lse", &params.lse, Access::kOutput};
  arguments.exec = &params.exec;
  return arguments;
}

inline QuantizeArguments gather(const tandem_quantize_fp8_params& params) {
  QuantizeArguments arguments;
  arguments.x = {"x", &params.x};
  arguments.out = {"out", &params.out, Access::kOutput};
  arguments.scale = {"scale", &params.scale, Access::kOutput};
  arguments.cu_seqlens = {"cu_seqlens", &params.cu_seqlens};
  arguments.seqused = {"seqused", &params.seqused};
  arguments.rotary_cos = {"rotary_cos", &params.rotary_cos};
  arguments.rotary_sin = {"rotary_sin", &params.rotary_sin};
  arguments.rotary_offset = {"rotary_offset", &params.rotary_offset};
  arguments.params = &params;
  return arguments;
}

}  // namespace tandem
