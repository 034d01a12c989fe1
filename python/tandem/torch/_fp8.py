"""Kernels and fake kernels of the fp8 ops, which have no derivative.

tandem::fp8_attention and tandem::fp8_attention_varlen are the attention ops plus scales; tandem::quantize_fp8 makes
what they take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tandem._quantize import result_shapes
from tandem.errors import UnsupportedError
from tandem.torch._run import readable, run

ATTENTION_INPUTS = ", Tensor? q_scale, Tensor? k_scale, Tensor? v_scale"
ATTENTION_OPTIONS = ", bool v_transposed, ScalarType? out_dtype=None"

QUANTIZE_SCHEMA = (
    "(Tensor x, Tensor? cu_seqlens, Tensor? seqused, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? rotary_offset, "
    "*, str granularity, SymInt? max_seqlen, bool rotate, int seed, bool rotary_interleaved, bool transposed, "
    "bool checked, int backend, int num_threads, int sm_margin) -> (Tensor, Tensor)"
)


def refuse_gradients(name: str) -> None:
    raise UnsupportedError(
        f"tandem.torch.{name} has no derivative: fp8 values are rounded too coarsely for one. Call it under "
        "torch.no_grad() or torch.inference_mode(), or detach its inputs; attention over fp16, bf16 or fp32 tensors "
        "has gradients"
    )


def _empty_results(q: Tensor, v: Tensor, v_transposed: bool, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    *batch, rows, heads, _ = q.shape
    headdim_v = v.shape[-2 if v_transposed else -1]
    out = q.new_empty((*batch, rows, heads, headdim_v), dtype=torch.bfloat16 if out_dtype is None else out_dtype)
    return out, q.new_empty((*batch, heads, rows), dtype=torch.float32)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    lo: Tensor | None,
    hi: Tensor | None,
    seqused_q: Tensor | None,
    seqused_k: Tensor | None,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    v_transposed: bool,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    out, lse = _empty_results(q, v, v_transposed, out_dtype)
    tensors = {
        "q": readable(q),
        "k": readable(k),
        "v": readable(v),
        "out": out,
        "lse": lse,
        "sink": sink,
        "lo": lo,
        "hi": hi,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "q_scale": q_scale,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    run("forward", q.device, tensors, {**options, "v_transposed": v_transposed})
    return out, lse


def attention_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *others: Tensor | None,
    v_transposed: bool,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v, v_transposed, out_dtype)


def _empty_quantized(
    x: Tensor, cu_seqlens: Tensor | None, granularity: Any, max_seqlen: int | None, transposed: bool
) -> tuple[Tensor, Tensor]:
    batch = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    out_shape, scale_shape = result_shapes(tuple(x.shape), batch, granularity, transposed, max_seqlen)
    return x.new_empty(out_shape, dtype=torch.float8_e4m3fn), x.new_empty(scale_shape, dtype=torch.float32)


def quantize(
    x: Tensor,
    cu_seqlens: Tensor | None,
    seqused: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    rotary_offset: Tensor | None,
    *,
    granularity: str,
    max_seqlen: int | None,
    transposed: bool,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    out, scale = _empty_quantized(x, cu_seqlens, granularity, max_seqlen, transposed)
    tensors = {
        "x": readable(x),
        "out": out,
        "scale": scale,
        "cu_seqlens": cu_seqlens,
        "seqused": seqused,
        "rotary_cos": None if rotary_cos is None else readable(rotary_cos),
        "rotary_sin": None if rotary_sin is None else readable(rotary_sin),
        "rotary_offset": rotary_offset,
    }
    run("quantize_fp8", x.device, tensors, {**options, "transposed": transposed})
    return out, scale


def quantize_fake(
    x: Tensor,
    cu_seqlens: Tensor | None,
    *others: Tensor | None,
    granularity: str,
    max_seqlen: int | None,
    transposed: bool,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    return _empty_quantized(x, cu_seqlens, granularity, max_seqlen, transposed)
