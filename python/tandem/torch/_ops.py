"""The custom ops behind tandem.torch: definitions, kernels, fake kernels and derivatives.

Each attention op returns (out, lse), so that one op serves callers of either and the backward finds both. The
differentiable and the other tensors are positional; options are keyword-only and named as in ``tandem._core``.
"""

# mypy: untyped-calls-exclude=torch
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tandem.errors import UnsupportedError
from tandem.torch import _merge
from tandem.torch._run import FP8, readable, run

_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? sink, Tensor? lo, Tensor? hi, Tensor? seqused_q, Tensor? seqused_k"
_PACKED_INPUTS = ", Tensor cu_seqlens_q, Tensor cu_seqlens_k"
_OPTIONS = (
    "bool causal, bool top_left, SymInt[]? window, SymInt attention_chunk, float? softmax_scale, float softcap, "
    "bool deterministic, bool checked, int backend, int num_threads, int sm_margin"
)
_PACKED_OPTIONS = ", SymInt max_seqlen_q, SymInt max_seqlen_k"
_FORWARD_OPTIONS = ", bool needs_grad, ScalarType? out_dtype=None"
_FORWARD_ONLY = ("needs_grad", "out_dtype")

_library = torch.library.Library("tandem", "DEF")


# ------------------------------------------------------------------------------------------------------------- forward


def _empty_results(q: Tensor, v: Tensor, out_dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """out (..., nheads_q, headdim_v) and lse (batch, nheads_q, seqlen_q), packed (nheads_q, total_q)."""
    if out_dtype is None:
        out_dtype = torch.bfloat16 if q.dtype in FP8 else q.dtype
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype)
    *batch, rows, heads = q.shape[:-1]
    lse = q.new_empty((*batch, heads, rows), dtype=_lse_dtype(q))
    return out, lse


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    lo: Tensor | None,
    hi: Tensor | None,
    seqused_q: Tensor | None,
    seqused_k: Tensor | None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    out, lse = _empty_results(q, v, out_dtype)
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
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    run("forward", q.device, tensors, options)
    return out, lse


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, *others: Tensor | None, out_dtype: torch.dtype | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    return _empty_results(q, v, out_dtype)


# ------------------------------------------------------------------------------------------------------------ backward


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dsink, all contiguous; without a sink, dsink is an empty tensor (an op cannot return None)."""
    dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    dsink = q.new_empty(0, dtype=_lse_dtype(q)) if sink is None else torch.empty_like(sink)
    return dq, dk, dv, dsink


def _backward(
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    lo: Tensor | None,
    hi: Tensor | None,
    seqused_q: Tensor | None,
    seqused_k: Tensor | None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dsink = _empty_gradients(q, k, v, sink)
    tensors = {
        "q": readable(q),
        "k": readable(k),
        "v": readable(v),
        "out": readable(out),
        "lse": lse,
        "dout": readable(dout),
        "dlse": dlse,
        "dq": dq,
        "dk": dk,
        "dv": dv,
        "sink": sink,
        "dsink": None if sink is None else dsink,
        "lo": lo,
        "hi": hi,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    run("backward", q.device, tensors, options)
    return dq, dk, dv, dsink


def _backward_fake(
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    *others: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(q, k, v, sink)


# ----------------------------------------------------------------------------------------------------------- derivative


class _Attention(torch.autograd.Function):
    """PERF: torch.library.register_autograd does the same, but goes through the schema's twenty arguments in Python,
    which takes longer than the rest of a small call."""

    @staticmethod
    def forward(ctx: Any, forward_op: Any, backward_op: Any, options: dict[str, Any], *inputs: Tensor | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = forward_op(*inputs, **options)
        ctx.save_for_backward(out, lse, *inputs)
        ctx.backward_op = backward_op
        ctx.options = {name: value for name, value in options.items() if name not in _FORWARD_ONLY}
        ctx.set_materialize_grads(False)  # None tells an unused lse from one whose gradient is 0
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        out, lse, *inputs = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        dq, dk, dv, dsink = ctx.backward_op(dout, dlse, out, lse, *inputs, **ctx.options)
        sink = inputs[3]
        return None, None, None, dq, dk, dv, None if sink is None else dsink, *(None for _ in inputs[4:])


class _Gradients(torch.autograd.Function):
    """The backward itself, which cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, backward_op: Any, options: dict[str, Any], *inputs: Tensor | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return backward_op(*inputs, **options)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        raise RuntimeError(
            "tandem.torch.attention has no second derivative: its backward cannot be differentiated (create_graph=True)"
            "; torch.nn.functional.scaled_dot_product_attention with its math backend has one"
        )


def differentiated(*tensors: Tensor | None) -> bool:
    """Whether the autograd functions must see the call: for a backward, or to refuse forward-mode derivatives."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _refuse_functorch() -> None:
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            "tandem.torch.attention has no derivative under the transforms of torch.func (grad, jvp, vjp, vmap of what "
            "requires a gradient); torch.autograd.grad and backward() have one"
        )


# -------------------------------------------------------------------------------------------------------- registration


def _define(name: str, schema: str, kernel: Any, fake: Any) -> Any:
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"tandem::{name}", fake, lib=_library)
    return getattr(torch.ops.tandem, name).default


def _define_attention(name: str, inputs: str, options: str) -> Any:
    forward_op = _define(
        name, f"({inputs}, *, {options}{_FORWARD_OPTIONS}) -> (Tensor, Tensor)", _forward, _forward_fake
    )
    backward_op = _define(
        f"{name}_backward",
        f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, {inputs}, *, {options}) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _backward_fake,
    )

    def forward_autograd(*tensors: Tensor | None, **options: Any) -> Any:
        if differentiated(*tensors):
            _refuse_functorch()
            return _Attention.apply(forward_op, backward_op, options, *tensors)  # type: ignore[no-untyped-call]
        with torch._C._AutoDispatchBelowAutograd():
            return forward_op(*tensors, **options)

    def backward_autograd(*tensors: Tensor | None, **options: Any) -> Any:
        if differentiated(*tensors):
            _refuse_functorch()
            return _Gradients.apply(backward_op, options, *tensors)  # type: ignore[no-untyped-call]
        with torch._C._AutoDispatchBelowAutograd():
            return backward_op(*tensors, **options)

    _library.impl(name, forward_autograd, "Autograd")
    _library.impl(f"{name}_backward", backward_autograd, "Autograd")
    return forward_op


attention = _define_attention("attention", _INPUTS, _OPTIONS)
attention_varlen = _define_attention("attention_varlen", _INPUTS + _PACKED_INPUTS, _OPTIONS + _PACKED_OPTIONS)
merge = _define(
    "merge",
    "(Tensor out_partial, Tensor lse_partial, Tensor? sink, *, int backend, int num_threads) -> (Tensor, Tensor)",
    _merge.forward,
    _merge.forward_fake,
)
torch.library.register_autograd(merge, _merge.derivative, setup_context=_merge.save, lib=_library)
