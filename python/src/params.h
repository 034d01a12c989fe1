#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "keywords.h"
#include "tandem/tandem.h"

namespace tandem::python {

// The three calls of an operation.
template <class Params>
struct Calls {
  tandem_status (*check)(const Params*);
  tandem_status (*workspace)(const Params*, uint64_t*, uint64_t*);
  tandem_status (*run)(const Params*);
};

inline Calls<tandem_forward_params> calls(const tandem_forward_params&) {
  return {tandem_forward_check, tandem_forward_workspace, tandem_forward};
}
inline Calls<tandem_varlen_forward_params> calls(const tandem_varlen_forward_params&) {
  return {tandem_varlen_forward_check, tandem_varlen_forward_workspace, tandem_varlen_forward};
}
inline Calls<tandem_backward_params> calls(const tandem_backward_params&) {
  return {tandem_backward_check, tandem_backward_workspace, tandem_backward};
}
inline Calls<tandem_varlen_backward_params> calls(const tandem_varlen_backward_params&) {
  return {tandem_varlen_backward_check, tandem_varlen_backward_workspace, tandem_varlen_backward};
}
inline Calls<tandem_merge_params> calls(const tandem_merge_params&) {
  return {tandem_merge_check, tandem_merge_workspace, tandem_merge};
}

inline Calls<tandem_quantize_fp8_params> calls(const tandem_quantize_fp8_params&) {
  return {tandem_quantize_fp8_check, tandem_quantize_fp8_workspace, tandem_quantize_fp8};
}

inline tandem_execution read_execution(Keywords& keywords) {
  tandem_execution exec = {};
  const auto device = keywords.get<std::pair<int32_t, int32_t>>("device", "a (type, ordinal) pair", {TANDEM_CPU, 0});
  exec.device = {device.first, device.second};
  exec.stream = keywords.address("stream");
  exec.workspace = keywords.address("workspace");
  exec.workspace_bytes = keywords.get<uint64_t>("workspace_bytes", "an int of at least 0", 0);
  exec.backend = keywords.small_integer("backend");
  exec.num_threads = keywords.small_integer("num_threads");
  exec.sm_margin = keywords.small_integer("sm_margin");
  exec.needs_grad = keywords.flag("needs_grad");
  exec.deterministic = keywords.flag("deterministic");
  exec.checked = keywords.flag("checked");
  return exec;
}

inline tandem_mask read_mask(Keywords& keywords) {
  tandem_mask mask = {};
  mask.causal = keywords.flag("causal");
  mask.top_left = keywords.flag("top_left");
  mask.has_window = keywords.has("window") ? 1 : 0;
  const auto window = keywords.get<std::pair<int64_t, int64_t>>("window", "a (left, right) pair of ints", {0, 0});
  mask.window_left = window.first;
  mask.window_right = window.second;
  mask.attention_chunk = keywords.integer("attention_chunk");
  mask.lo = keywords.optional_tensor("lo");
  mask.hi = keywords.optional_tensor("hi");
  return mask;
}

template <class Params>
void read_gradients(Keywords& keywords, Params& params) {
  params.dout = keywords.tensor("dout");
  params.dlse = keywords.optional_tensor("dlse");
  params.dq = keywords.tensor("dq");
  params.dk = keywords.tensor("dk");
  params.dv = keywords.tensor("dv");
  params.dsink = keywords.optional_tensor("dsink");
}

template <class Params>
void read_scales(Keywords& keywords, Params& params) {
  params.q_scale = keywords.optional_tensor("q_scale");
  params.k_scale = keywords.optional_tensor("k_scale");
  params.v_scale = keywords.optional_tensor("v_scale");
  params.v_transposed = keywords.flag("v_transposed");
}

template <class Params>
void read_packing(Keywords& keywords, Params& params) {
  params.cu_seqlens_q = keywords.optional_tensor("cu_seqlens_q");
  params.cu_seqlens_k = keywords.optional_tensor("cu_seqlens_k");
  params.max_seqlen_q = keywords.integer("max_seqlen_q");
  params.max_seqlen_k = keywords.integer("max_seqlen_k");
}

template <class Params>
void read_attention(Keywords& keywords, Params& params) {
  constexpr bool kBackward =
      std::is_same_v<Params, tandem_backward_params> || std::is_same_v<Params, tandem_varlen_backward_params>;
  constexpr bool kPacked =
      std::is_same_v<Params, tandem_varlen_forward_params> || std::is_same_v<Params, tandem_varlen_backward_params>;
  params.q = keywords.tensor("q");
  params.k = keywords.tensor("k");
  params.v = keywords.tensor("v");
  params.out = keywords.tensor("out");
  params.lse = keywords.optional_tensor("lse");
  params.sink = keywords.optional_tensor("sink");
  params.seqused_q = keywords.optional_tensor("seqused_q");
  params.seqused_k = keywords.optional_tensor("seqused_k");
  params.mask = read_mask(keywords);
  params.has_softmax_scale = keywords.has("softmax_scale") ? 1 : 0;
  params.softmax_scale = keywords.number("softmax_scale");
  params.softcap = keywords.number("softcap");
  if constexpr (kBackward) {
    read_gradients(keywords, params);
  } else {
    read_scales(keywords, params);
  }
  if constexpr (kPacked) {
    read_packing(keywords, params);
  } else {
    // None, and hints that a dense call has no use for.
    for (const char* name : {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}) keywords.allow(name);
  }
}

inline void read_merge(Keywords& keywords, tandem_merge_params& params) {
  params.out_partial = keywords.tensor("out_partial");
  params.lse_partial = keywords.tensor("lse_partial");
  params.sink = keywords.optional_tensor("sink");
  params.out = keywords.tensor("out");
  params.lse = keywords.optional_tensor("lse");
}

inline void read_quantize(Keywords& keywords, tandem_quantize_fp8_params& params) {
  params.x = keywords.tensor("x");
  params.out = keywords.tensor("out");
  params.scale = keywords.tensor("scale");
  params.cu_seqlens = keywords.optional_tensor("cu_seqlens");
  params.seqused = keywords.optional_tensor("seqused");
  params.rotary_cos = keywords.optional_tensor("rotary_cos");
  params.rotary_sin = keywords.optional_tensor("rotary_sin");
  params.rotary_offset = keywords.optional_tensor("rotary_offset");
  params.seed = keywords.get<uint64_t>("seed", "an int of at least 0", 0);
  params.rotate = keywords.flag("rotate");
  params.rotary_interleaved = keywords.flag("rotary_interleaved");
  params.transposed = keywords.flag("transposed");
}

template <class Params>
Params read_params(Keywords& keywords) {
  Params params = {};
  params.struct_size = sizeof(Params);
  params.exec = read_execution(keywords);
  if constexpr (std::is_same_v<Params, tandem_merge_params>) {
    read_merge(keywords, params);
  } else if constexpr (std::is_same_v<Params, tandem_quantize_fp8_params>) {
    read_quantize(keywords, params);
  } else {
    read_attention(keywords, params);
  }
  keywords.finish();
  return params;
}

}  // namespace tandem::python
