/*
 * The frozen ABI: sizes and offsets of every public struct, on 64-bit platforms. A change of a number that is here
 * breaks programs that were built against an older header; lines are only ever added, for fields at the end of a
 * parameter struct, whose size then grows. Also proof that tandem.h is C99.
 */
#include <stdio.h>
#include <tandem/tandem.h>

static int faults = 0;

static void expect(const char* what, size_t found, size_t frozen) {
  if (found == frozen) return;
  printf("%s is %lu; the frozen ABI says %lu\n", what, (unsigned long)found, (unsigned long)frozen);
  ++faults;
}

#define SIZE(type, frozen) expect("sizeof(" #type ")", sizeof(type), frozen)
#define OFFSET(type, field, frozen) expect("offsetof(" #type ", " #field ")", offsetof(type, field), frozen)

static void check_tensor(void) {
  SIZE(tandem_tensor, 112);
  OFFSET(tandem_tensor, data, 0);
  OFFSET(tandem_tensor, dtype, 8);
  OFFSET(tandem_tensor, ndim, 12);
  OFFSET(tandem_tensor, shape, 16);
  OFFSET(tandem_tensor, stride, 64);
}

static void check_device(void) {
  SIZE(tandem_device, 8);
  OFFSET(tandem_device, type, 0);
  OFFSET(tandem_device, ordinal, 4);
}

static void check_execution(void) {
  SIZE(tandem_execution, 56);
  OFFSET(tandem_execution, device, 0);
  OFFSET(tandem_execution, stream, 8);
  OFFSET(tandem_execution, workspace, 16);
  OFFSET(tandem_execution, workspace_bytes, 24);
  OFFSET(tandem_execution, backend, 32);
  OFFSET(tandem_execution, num_threads, 36);
  OFFSET(tandem_execution, sm_margin, 40);
  OFFSET(tandem_execution, needs_grad, 44);
  OFFSET(tandem_execution, deterministic, 48);
  OFFSET(tandem_execution, checked, 52);
}

static void check_mask(void) {
  SIZE(tandem_mask, 264);
  OFFSET(tandem_mask, causal, 0);
  OFFSET(tandem_mask, top_left, 4);
  OFFSET(tandem_mask, has_window, 8);
  OFFSET(tandem_mask, reserved, 12);
  OFFSET(tandem_mask, window_left, 16);
  OFFSET(tandem_mask, window_right, 24);
  OFFSET(tandem_mask, attention_chunk, 32);
  OFFSET(tandem_mask, lo, 40);
  OFFSET(tandem_mask, hi, 152);
}

static void check_forward_params(void) {
  SIZE(tandem_forward_params, 1592);
  OFFSET(tandem_forward_params, struct_size, 0);
  OFFSET(tandem_forward_params, exec, 8);
  OFFSET(tandem_forward_params, q, 64);
  OFFSET(tandem_forward_params, k, 176);
  OFFSET(tandem_forward_params, v, 288);
  OFFSET(tandem_forward_params, out, 400);
  OFFSET(tandem_forward_params, lse, 512);
  OFFSET(tandem_forward_params, sink, 624);
  OFFSET(tandem_forward_params, q_scale, 736);
  OFFSET(tandem_forward_params, k_scale, 848);
  OFFSET(tandem_forward_params, v_scale, 960);
  OFFSET(tandem_forward_params, seqused_q, 1072);
  OFFSET(tandem_forward_params, seqused_k, 1184);
  OFFSET(tandem_forward_params, mask, 1296);
  OFFSET(tandem_forward_params, softmax_scale, 1560);
  OFFSET(tandem_forward_params, softcap, 1568);
  OFFSET(tandem_forward_params, has_softmax_scale, 1576);
  OFFSET(tandem_forward_params, reserved, 1580);
  OFFSET(tandem_forward_params, v_transposed, 1584);
  OFFSET(tandem_forward_params, reserved_2, 1588);
}

static void check_varlen_forward_params(void) {
  SIZE(tandem_varlen_forward_params, 1832);
  OFFSET(tandem_varlen_forward_params, struct_size, 0);
  OFFSET(tandem_varlen_forward_params, exec, 8);
  OFFSET(tandem_varlen_forward_params, q, 64);
  OFFSET(tandem_varlen_forward_params, k, 176);
  OFFSET(tandem_varlen_forward_params, v, 288);
  OFFSET(tandem_varlen_forward_params, out, 400);
  OFFSET(tandem_varlen_forward_params, lse, 512);
  OFFSET(tandem_varlen_forward_params, sink, 624);
  OFFSET(tandem_varlen_forward_params, q_scale, 736);
  OFFSET(tandem_varlen_forward_params, k_scale, 848);
  OFFSET(tandem_varlen_forward_params, v_scale, 960);
  OFFSET(tandem_varlen_forward_params, cu_seqlens_q, 1072);
  OFFSET(tandem_varlen_forward_params, cu_seqlens_k, 1184);
  OFFSET(tandem_varlen_forward_params, seqused_q, 1296);
  OFFSET(tandem_varlen_forward_params, seqused_k, 1408);
  OFFSET(tandem_varlen_forward_params, max_seqlen_q, 1520);
  OFFSET(tandem_varlen_forward_params, max_seqlen_k, 1528);
  OFFSET(tandem_varlen_forward_params, mask, 1536);
  OFFSET(tandem_varlen_forward_params, softmax_scale, 1800);
  OFFSET(tandem_varlen_forward_params, softcap, 1808);
  OFFSET(tandem_varlen_forward_params, has_softmax_scale, 1816);
  OFFSET(tandem_varlen_forward_params, reserved, 1820);
  OFFSET(tandem_varlen_forward_params, v_transposed, 1824);
  OFFSET(tandem_varlen_forward_params, reserved_2, 1828);
}

static void check_backward_params(void) {
  SIZE(tandem_backward_params, 1920);
  OFFSET(tandem_backward_params, struct_size, 0);
  OFFSET(tandem_backward_params, exec, 8);
  OFFSET(tandem_backward_params, q, 64);
  OFFSET(tandem_backward_params, k, 176);
  OFFSET(tandem_backward_params, v, 288);
  OFFSET(tandem_backward_params, out, 400);
  OFFSET(tandem_backward_params, lse, 512);
  OFFSET(tandem_backward_params, dout, 624);
  OFFSET(tandem_backward_params, dlse, 736);
  OFFSET(tandem_backward_params, dq, 848);
  OFFSET(tandem_backward_params, dk, 960);
  OFFSET(tandem_backward_params, dv, 1072);
  OFFSET(tandem_backward_params, sink, 1184);
  OFFSET(tandem_backward_params, dsink, 1296);
  OFFSET(tandem_backward_params, seqused_q, 1408);
  OFFSET(tandem_backward_params, seqused_k, 1520);
  OFFSET(tandem_backward_params, mask, 1632);
  OFFSET(tandem_backward_params, softmax_scale, 1896);
  OFFSET(tandem_backward_params, softcap, 1904);
  OFFSET(tandem_backward_params, has_softmax_scale, 1912);
  OFFSET(tandem_backward_params, reserved, 1916);
}

static void check_varlen_backward_params(void) {
  SIZE(tandem_varlen_backward_params, 2160);
  OFFSET(tandem_varlen_backward_params, struct_size, 0);
  OFFSET(tandem_varlen_backward_params, exec, 8);
  OFFSET(tandem_varlen_backward_params, q, 64);
  OFFSET(tandem_varlen_backward_params, k, 176);
  OFFSET(tandem_varlen_backward_params, v, 288);
  OFFSET(tandem_varlen_backward_params, out, 400);
  OFFSET(tandem_varlen_backward_params, lse, 512);
  OFFSET(tandem_varlen_backward_params, dout, 624);
  OFFSET(tandem_varlen_backward_params, dlse, 736);
  OFFSET(tandem_varlen_backward_params, dq, 848);
  OFFSET(tandem_varlen_backward_params, dk, 960);
  OFFSET(tandem_varlen_backward_params, dv, 1072);
  OFFSET(tandem_varlen_backward_params, sink, 1184);
  OFFSET(tandem_varlen_backward_params, dsink, 1296);
  OFFSET(tandem_varlen_backward_params, cu_seqlens_q, 1408);
  OFFSET(tandem_varlen_backward_params, cu_seqlens_k, 1520);
  OFFSET(tandem_varlen_backward_params, seqused_q, 1632);
  OFFSET(tandem_varlen_backward_params, seqused_k, 1744);
  OFFSET(tandem_varlen_backward_params, max_seqlen_q, 1856);
  OFFSET(tandem_varlen_backward_params, max_seqlen_k, 1864);
  OFFSET(tandem_varlen_backward_params, mask, 1872);
  OFFSET(tandem_varlen_backward_params, softmax_scale, 2136);
  OFFSET(tandem_varlen_backward_params, softcap, 2144);
  OFFSET(tandem_varlen_backward_params, has_softmax_scale, 2152);
  OFFSET(tandem_varlen_backward_params, reserved, 2156);
}

static void check_merge_params(void) {
  SIZE(tandem_merge_params, 624);
  OFFSET(tandem_merge_params, struct_size, 0);
  OFFSET(tandem_merge_params, exec, 8);
  OFFSET(tandem_merge_params, out_partial, 64);
  OFFSET(tandem_merge_params, lse_partial, 176);
  OFFSET(tandem_merge_params, sink, 288);
  OFFSET(tandem_merge_params, out, 400);
  OFFSET(tandem_merge_params, lse, 512);
}

static void check_quantize_params(void) {
  SIZE(tandem_quantize_fp8_params, 984);
  OFFSET(tandem_quantize_fp8_params, struct_size, 0);
  OFFSET(tandem_quantize_fp8_params, exec, 8);
  OFFSET(tandem_quantize_fp8_params, x, 64);
  OFFSET(tandem_quantize_fp8_params, out, 176);
  OFFSET(tandem_quantize_fp8_params, scale, 288);
  OFFSET(tandem_quantize_fp8_params, cu_seqlens, 400);
  OFFSET(tandem_quantize_fp8_params, seqused, 512);
  OFFSET(tandem_quantize_fp8_params, rotary_cos, 624);
  OFFSET(tandem_quantize_fp8_params, rotary_sin, 736);
  OFFSET(tandem_quantize_fp8_params, rotary_offset, 848);
  OFFSET(tandem_quantize_fp8_params, seed, 960);
  OFFSET(tandem_quantize_fp8_params, rotate, 968);
  OFFSET(tandem_quantize_fp8_params, rotary_interleaved, 972);
  OFFSET(tandem_quantize_fp8_params, transposed, 976);
  OFFSET(tandem_quantize_fp8_params, reserved, 980);
}

int main(void) {
  check_tensor();
  check_device();
  check_execution();
  check_mask();
  check_forward_params();
  check_varlen_forward_params();
  check_backward_params();
  check_varlen_backward_params();
  check_merge_params();
  check_quantize_params();
  return faults == 0 ? 0 : 1;
}
