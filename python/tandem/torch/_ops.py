"""The custom ops behind tandem.torch: definitions, kernels, fake kernels and derivatives.

Each attention op returns (out, lse), so that one op serves callers of either and the backward finds both. The
differentiable and the other tensors are positional; options are keyword-only and named as in ``tandem._core``.
"""

# mypy: untyped-calls-exclude=torch
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tandem.errors import UnsupportedError
from tandem.torch import _fp8, _merge
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
    *batch, rows, heads, _ = q.shape
    out = q.new_empty((*batch, rows, heads, v.shape[-1]), dtype=out_dtype)
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
    def forward(ctx: Any, forward: Any, backward: Any, options: dict[str, Any], *inputs: Tensor | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = forward(*inputs, **options)
        ctx.save_for_backward(out, lse, *inputs)
        ctx.backward = backward
        ctx.options = {name: value for name, value in options.items() if name not in _FORWARD_ONLY}
        ctx.set_materialize_grads(False)  # None tells an unused lse from one whose gradient is 0
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        out, lse, *inputs = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        dq, dk, dv, dsink = ctx.backward(dout, dlse, out, lse, *inputs, **ctx.options)
        sink = inputs[3]
        return None, None, None, dq, dk, dv, None if sink is None else dsink, *(None for _ in inputs[4:])


class _Gradients(torch.autograd.Function):
    """The backward itself, which cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, backward: Any, options: dict[str, Any], *inputs: Tensor | None) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return backward(*inputs, **options)

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
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


def _refuse_functorch() -> None:
    if torch._C._are_functorch_transforms_active():
        raise UnsupportedError(
            "tandem.torch.attention has no derivative under the transforms of torch.func (grad, jvp, vjp, vmap of what "
            "requires a gradient); torch.autograd.grad and backward() have one"
        )


# ------------------------------------------------------------------------------------------------ past the dispatcher
#
# PERF: torch's dispatcher takes as long to bring twenty arguments to a Python kernel as all the rest of a small call:
# bench/eager_overhead.py, one row and one key on a CPU, 77 us with it and 37 us without (and with interned keywords).


def _included_keys() -> int:
    keys: int = torch._C._dispatch_tls_local_include_set().raw_repr()
    return keys


_QUIET = {_included_keys()}  # of the thread: no dispatch mode, no transform of torch.func, no tracer
with torch.inference_mode():
    _QUIET.add(_included_keys())


@cache
def _plain_keys(device: torch.device) -> set[int]:
    """The dispatch keys of tensors that are memory and nothing else: no subclass, no lazy negation, not batched."""
    plain = [torch.empty(0, device=device)]
    with torch.inference_mode():
        plain.append(torch.empty(0, device=device))
    return {torch._C._dispatch_keys(t).raw_repr() for t in plain}


def _nobody_watches(first: Tensor, *others: Tensor | None) -> bool:
    """Whether calling a kernel itself is the same as calling its op."""
    if (
        _included_keys() not in _QUIET
        or torch._C._len_torch_function_stack() > 0
        or torch._C._autograd._profiler_enabled()
        or first.device.type not in ("cpu", "cuda")
    ):
        return False
    plain = _plain_keys(first.device)
    return all(t is None or torch._C._dispatch_keys(t).raw_repr() in plain for t in (first, *others))


# -------------------------------------------------------------------------------------------------------- registration


def _define(name: str, schema: str, kernel: Any, fake: Any) -> Any:
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"tandem::{name}", fake, lib=_library)
    return getattr(torch.ops.tandem, name).default


def _with_derivative(op: Any, kernel: Any, differentiate: Callable[..., Any]) -> Callable[..., Any]:
    """Registers `differentiate(forward, options, tensors)` and returns the op as it is called from Python."""

    def from_dispatcher(*tensors: Tensor | None, **options: Any) -> Any:
        if differentiated(*tensors):
            _refuse_functorch()
            return differentiate(op, options, *tensors)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*tensors, **options)

    def from_python(*tensors: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or not _nobody_watches(*tensors):
            return op(*tensors, **options)
        if differentiated(*tensors):
            return differentiate(kernel, options, *tensors)
        return kernel(*tensors, **options)

    _library.impl(op.name().removeprefix("tandem::"), from_dispatcher, "Autograd")
    return from_python


def _define_attention(name: str, inputs: str, options: str) -> Callable[..., Any]:
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
    backward = _with_derivative(backward_op, _backward, _Gradients.apply)
    return _with_derivative(
        forward_op,
        _forward,
        lambda forward, *arguments: _Attention.apply(forward, backward, *arguments),  # type: ignore[no-untyped-call]
    )


def _without_derivative(op: Any, name: str) -> Any:
    """`name` is what its users call it."""

    def from_dispatcher(*tensors: Tensor | None, **options: Any) -> Any:
        if differentiated(*tensors):
            _fp8.refuse_gradients(name)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*tensors, **options)

    _library.impl(op.name().removeprefix("tandem::"), from_dispatcher, "Autograd")
    return op


def _define_fp8_attention(name: str, inputs: str, options: str) -> Any:
    schema = f"({inputs}, *, {options}{_fp8.ATTENTION_OPTIONS}) -> (Tensor, Tensor)"
    return _without_derivative(
        _define(f"fp8_{name}", schema, _fp8.attention, _fp8.attention_fake), f"{name} of fp8 tensors"
    )


attention = _define_attention("attention", _INPUTS, _OPTIONS)
attention_varlen = _define_attention("attention_varlen", _INPUTS + _PACKED_INPUTS, _OPTIONS + _PACKED_OPTIONS)
fp8_attention = _define_fp8_attention("attention", _INPUTS + _fp8.ATTENTION_INPUTS, _OPTIONS)
fp8_attention_varlen = _define_fp8_attention(
    "attention_varlen", _INPUTS + _fp8.ATTENTION_INPUTS + _PACKED_INPUTS, _OPTIONS + _PACKED_OPTIONS
)
quantize_fp8 = _without_derivative(
    _define("quantize_fp8", _fp8.QUANTIZE_SCHEMA, _fp8.quantize, _fp8.quantize_fake), "quantize_fp8"
)
merge = _define(
    "merge",
    "(Tensor out_partial, Tensor lse_partial, Tensor? sink, *, int backend, int num_threads) -> (Tensor, Tensor)",
    _merge.forward,
    _merge.forward_fake,
)
torch.library.register_autograd(merge, _merge.derivative, setup_context=_merge.save, lib=_library)
