"""Tandem for PyTorch: attention as custom ops with gradients, eager or compiled.

    import tandem.torch
    out = tandem.torch.attention(q, k, v, causal=True)      # q: (batch, seqlen_q, nheads_q, headdim)

The ops torch.ops.tandem.attention and .attention_varlen always return (out, lse). No C++ of torch is used, so that one
build serves every torch version. On Linux, torch and Tandem ask for the same libgomp.so.1, whichever is imported first:
they share one OpenMP runtime, its threads, and what torch.set_num_threads says. A forked process, such as a worker of a
DataLoader, runs Tandem on one thread.

CUDA tensors run on torch's current stream of their device, with scratch memory of torch's allocator, and can be
captured in CUDA graphs after one call there. What the GPU cannot read in place is copied or padded here. A GPU has the
forward only: a call that records gradients is refused there, so use torch.no_grad() or torch.inference_mode().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch.nn.functional import pad

from tandem import _core
from tandem._call import DENSE_AXES, PACKED_AXES
from tandem._options import BACKEND_CHOICES
from tandem.errors import InvalidArgumentError, UnsupportedError
from tandem.torch import _ops
from tandem.torch._run import FP8

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tandem._options import Alignment
    from tandem._quantize import Granularity
    from tandem.torch._typing import AttentionOptions, VarlenAttentionOptions

__all__ = ["attention", "attention_varlen", "merge", "quantize_fp8"]

_ALIGNMENTS = {"bottom-right": False, "top-left": True}
_AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CUDA_HEADDIM_MULTIPLE = 8  # 16 bytes of a 16-bit type; 16 for fp8


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **options: Unpack[AttentionOptions]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[AttentionOptions]
) -> tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    alignment: Alignment = "bottom-right",
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    v_transposed: bool = False,
    deterministic: bool = False,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    backend: str | None = None,
    num_threads: int | None = None,
    sm_margin: int = 0,
    checked: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention, differentiable once in q, k, v, sink (also through the LSE).

    Args:
        q: (batch, seqlen_q, nheads_q, headdim), any float type of Tandem; under ``torch.autocast``, q, k and v are cast
            to its type (but fp64 and fp8). Any strides: only a last axis that is not contiguous is copied.
        k: (batch, seqlen_k, nheads_k, headdim); nheads_k divides nheads_q.
        v: (batch, seqlen_k, nheads_k, headdim_v).
        causal: row i sees no key after its own position, i + seqlen_k - seqlen_q.
        window: keys (left, right) of a row's own position that it sees; -1 opens a side.
        attention_chunk: a row sees only keys of its own chunk of this many positions; 0: no chunks.
        softmax_scale: factor of the scores; None: 1 / sqrt(headdim).
        softcap: scores become softcap * tanh(scores / softcap); 0: none.
        sink: (nheads_q), fp32 (fp64 with fp64 q): one more logit per head, which only the denominator sees.
        lo, hi: int32 (batch or 1, nheads_q or 1, seqlen_q): row i also needs lo <= j < hi.
        seqused_q, seqused_k: int32 (batch): how many rows of each sequence count.
        alignment: "bottom-right", or "top-left": row i stands at position i.
        q_scale, k_scale, v_scale: fp32 factors of float8_e4m3fn tensors, (1), (batch, nheads) or (batch, nheads,
            ceil(seqlen / 128)), as :func:`quantize_fp8` gives them; None: 1. q_scale may also have nheads_k heads. fp8
            has no gradient: a call that would need one is refused.
        v_transposed: v is what ``quantize_fp8(v, transposed=True)`` gives.
        deterministic: gradients are bitwise equal on every run, or the call refuses; also set by
            ``torch.use_deterministic_algorithms(True)``.
        return_lse: return (out, lse).
        out_dtype: dtype of out: that of q (default; bfloat16 for fp8 q), or float32 for 16-bit and fp8 q, so that
            :func:`merge` joins parts that have not been rounded. The gradient of out has it too.
        backend: "reference", "tiled" or "sm90"; None or "auto": the environment variable TANDEM_BACKEND, else the best
            for the device. One that cannot serve is an error.
        num_threads: CPU threads; None: ``torch.get_num_threads()``. Changes no bit of the result.
        sm_margin: CUDA: SMs left free for other work.
        checked: validate lengths and intervals by value.

    Returns:
        out (batch, seqlen_q, nheads_q, headdim_v) of ``out_dtype``, contiguous; with ``return_lse`` also the
        natural-log LSE (batch, nheads_q, seqlen_q), fp32 (fp64 for fp64 q). A row that sees no key has out 0, LSE -inf.

    Raises:
        tandem.TandemError: in one of its classes, with a sentence that names the argument.
    """
    options = _options(
        causal, window, attention_chunk, softmax_scale, softcap, alignment, deterministic, backend, num_threads,
        sm_margin, checked,
    )  # fmt: skip
    others = {"sink": sink, "lo": lo, "hi": hi, "seqused_q": seqused_q, "seqused_k": seqused_k}
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    return _call(q, k, v, others, scales, {}, options, v_transposed, return_lse, out_dtype)


@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[VarlenAttentionOptions],
) -> Tensor: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    return_lse: Literal[True],
    **options: Unpack[VarlenAttentionOptions],
) -> tuple[Tensor, Tensor]: ...
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen_q: int | Tensor | None = None,
    max_seqlen_k: int | Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    alignment: Alignment = "bottom-right",
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    v_transposed: bool = False,
    deterministic: bool = False,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    backend: str | None = None,
    num_threads: int | None = None,
    sm_margin: int = 0,
    checked: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over packed sequences of different lengths: rows cu_seqlens[b] to cu_seqlens[b + 1] are sequence b.

    Args:
        q: (total_q, nheads_q, headdim).
        k: (total_k, nheads_k, headdim).
        v: (total_k, nheads_k, headdim_v).
        cu_seqlens_q, cu_seqlens_k: int32 (batch + 1), non-decreasing, on q's device.
        max_seqlen_q, max_seqlen_k: hints about the longest sequence, never trusted; None: unknown. A 0-d tensor is read
            (on CUDA this synchronizes); under ``torch.compile`` it counts as unknown instead.
        lo, hi: int32 (nheads_q or 1, total_q), positions within the row's sequence.
        seqused_q, seqused_k: int32 (batch): how many rows of each sequence count; the rest is a gap.

    The other arguments are those of :func:`attention`.

    Returns:
        out (total_q, nheads_q, headdim_v), with ``return_lse`` also the LSE (nheads_q, total_q). Rows outside every
        sequence have out 0 and LSE -inf.
    """
    options = _options(
        causal, window, attention_chunk, softmax_scale, softcap, alignment, deterministic, backend, num_threads,
        sm_margin, checked,
    )  # fmt: skip
    options["max_seqlen_q"] = _length_hint(max_seqlen_q)
    options["max_seqlen_k"] = _length_hint(max_seqlen_k)
    others = {
        "sink": sink,
        "lo": lo,
        "hi": hi,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
    }
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    offsets = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    return _call(q, k, v, others, scales, offsets, options, v_transposed, return_lse, out_dtype)


def merge(
    outs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor], sink: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Joins attention over disjoint sets of keys into attention over their union. Differentiable.

    Args:
        outs: partial outputs, a sequence or stacked on a first axis: (batch, seqlen_q, nheads_q, headdim_v), packed
            (total_q, nheads_q, headdim_v).
        lses: their LSEs, computed without a sink: (batch, nheads_q, seqlen_q), packed (nheads_q, total_q).
        sink: (nheads_q): joins the denominator here, once.

    Returns:
        (out, lse). Parts with LSE = -inf are empty, whatever their output holds.
    """
    out_partial = outs if isinstance(outs, Tensor) else torch.stack(tuple(outs))
    lse_partial = lses if isinstance(lses, Tensor) else torch.stack(tuple(lses))
    _require_one_device("outs", out_partial, lses=lse_partial, sink=sink)
    if torch.autograd.forward_ad._current_level >= 0:
        raise UnsupportedError("tandem.torch.merge has no forward-mode derivative; call it outside of dual_level")
    out, lse = _ops.merge(out_partial, lse_partial, sink, backend=_core.BACKEND_AUTO, num_threads=0)
    return out, lse


def quantize_fp8(
    x: Tensor,
    *,
    granularity: Granularity = "block",
    rotate: bool = False,
    seed: int = 0,
    transposed: bool = False,
    cu_seqlens: Tensor | None = None,
    seqused: Tensor | None = None,
    max_seqlen: int | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_offset: Tensor | None = None,
    rotary_interleaved: bool = False,
    backend: str | None = None,
    num_threads: int | None = None,
    sm_margin: int = 0,
    checked: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rounds q, k or v to float8_e4m3fn, with scales for :func:`attention`: x is about ``out * scale``.

    Args:
        x: (batch, seqlen, nheads, headdim), with cu_seqlens (total, nheads, headdim); fp16, bf16, on the CPU also fp32.
        granularity: which rows share a scale: those of the whole "tensor", of a (sequence, "head"), or a "block" of 128
            rows of these, counted from the start of each sequence.
        rotate: multiply rows by random signs and a Hadamard matrix, which spreads outliers. Rotate q and k with one
            seed: their products stay. headdim must be a power of two, or 12 times one; pad others with zeros (and give
            :func:`attention` the softmax_scale of the real headdim).
        seed: of the signs.
        transposed: for v: out is (batch, nheads, headdim, slots), packed (nheads, headdim, slots): see tandem.h.
        cu_seqlens: int32 (batch + 1): x is packed.
        seqused: int32 (batch): how many rows of each sequence count. The others are not read, and become 0.
        max_seqlen: of packed sequences: scale has blocks for this many rows. None: for as many as x has.
        rotary_cos, rotary_sin: fp32 or dtype of x, (positions, rotary_dim / 2): rotary embedding of the first
            rotary_dim columns, before the rotation.
        rotary_offset: int32 (batch): position of each sequence's first row; None: 0.
        rotary_interleaved: columns (0, 1), (2, 3) ... turn together, instead of c and rotary_dim / 2 + c.

    The other arguments are those of :func:`attention`.

    Returns:
        (out, scale): float8_e4m3fn of the shape of x or transposed; fp32 (1), (batch, nheads) or (batch, nheads,
        blocks). The same bits on every run. Not differentiable: refused where a gradient would be needed.
    """
    if backend is not None and backend not in BACKEND_CHOICES:
        raise InvalidArgumentError(f"backend is {backend!r}; allowed: None, {', '.join(map(repr, BACKEND_CHOICES))}")
    tables = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary_offset": rotary_offset}
    _require_one_device("x", x, cu_seqlens=cu_seqlens, seqused=seqused, **tables)
    out, scale = _ops.quantize_fp8(
        x,
        cu_seqlens,
        seqused,
        *tables.values(),
        granularity=granularity,
        max_seqlen=max_seqlen,
        rotate=rotate,
        seed=seed,
        rotary_interleaved=rotary_interleaved,
        transposed=transposed,
        checked=checked,
        backend=_core.BACKEND_AUTO if backend is None else BACKEND_CHOICES[backend],
        num_threads=num_threads or 0,
        sm_margin=sm_margin,
    )
    return out, scale


def _options(
    causal: bool,
    window: tuple[int, int],
    attention_chunk: int,
    softmax_scale: float | None,
    softcap: float,
    alignment: str,
    deterministic: bool,
    backend: str | None,
    num_threads: int | None,
    sm_margin: int,
    checked: bool,
) -> dict[str, Any]:
    """The public options as the ops' keyword-only arguments."""
    if alignment not in _ALIGNMENTS:
        raise InvalidArgumentError(f"alignment is {alignment!r}; allowed: {', '.join(map(repr, _ALIGNMENTS))}")
    if backend is not None and backend not in BACKEND_CHOICES:
        raise InvalidArgumentError(f"backend is {backend!r}; allowed: None, {', '.join(map(repr, BACKEND_CHOICES))}")
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window must be a (left, right) pair of ints, -1 for an open side, not {window!r}")
    left, right = window
    return {
        "causal": causal,
        "top_left": _ALIGNMENTS[alignment],
        "window": None if left == -1 and right == -1 else [left, right],
        "attention_chunk": attention_chunk,
        "softmax_scale": softmax_scale,
        "softcap": softcap,
        "deterministic": deterministic or torch.are_deterministic_algorithms_enabled(),
        "checked": checked,
        "backend": _core.BACKEND_AUTO if backend is None else BACKEND_CHOICES[backend],
        "num_threads": num_threads or 0,
        "sm_margin": sm_margin,
    }


def _length_hint(length: int | Tensor | None) -> int:
    if isinstance(length, Tensor):
        return 0 if torch.compiler.is_compiling() else int(length)
    return length or 0


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    others: dict[str, Tensor | None],
    scales: dict[str, Tensor | None],
    offsets: dict[str, Tensor],
    options: dict[str, Any],
    v_transposed: bool,
    return_lse: bool,
    out_dtype: torch.dtype | None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`offsets` is empty in a dense call."""
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype or None, not {type(out_dtype).__name__}")
    _require_one_device("q", q, k=k, v=v, **others, **scales, **offsets)
    _require_axes(PACKED_AXES if offsets else DENSE_AXES, q=q, k=k, v=v)
    q, k, v = _autocast(q, k, v)
    column_axis = -2 if v_transposed else -1
    headdim_v = v.shape[column_axis]
    if q.is_cuda:
        q, k, v = _pad_headdims(q, k, v, options, column_axis)
    tensors = (q, k, v, *others.values())
    if q.dtype in FP8 or v_transposed or any(scale is not None for scale in scales.values()):
        fp8_op = _ops.fp8_attention_varlen if offsets else _ops.fp8_attention
        tensors = (*tensors, *scales.values(), *offsets.values())
        out, lse = fp8_op(*tensors, **options, v_transposed=v_transposed, out_dtype=out_dtype)
    else:
        op = _ops.attention_varlen if offsets else _ops.attention
        sink = others["sink"]
        needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, sink))
        out, lse = op(*tensors, *offsets.values(), **options, needs_grad=needs_grad, out_dtype=out_dtype)
    if out.shape[-1] != headdim_v:
        out = out[..., :headdim_v]
    return (out, lse) if return_lse else out


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    device_type = tensors[0].device.type
    if device_type not in ("cpu", "cuda") or not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(t.to(dtype) if t.dtype in _AUTOCAST_DTYPES else t for t in tensors)


def _require_one_device(first_name: str, first: Tensor, **others: Tensor | None) -> None:
    if not isinstance(first, Tensor):
        raise TypeError(f"{first_name} must be a torch.Tensor, not {type(first).__name__}")
    device = first.device
    for name, other in others.items():
        if other is None:
            continue
        if not isinstance(other, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, not {type(other).__name__}")
        if other.device != device:
            raise InvalidArgumentError(
                f"{name} is on {other.device}, but {first_name} on {device}; all tensors must be on one device"
            )


def _require_axes(axes: tuple[str, ...], **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim != len(axes):
            raise InvalidArgumentError(
                f"{name} has shape {tuple(tensor.shape)}; it needs {len(axes)} axes ({', '.join(axes)})"
            )


def _pad_headdims(
    q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], column_axis: int = -1
) -> tuple[Tensor, ...]:
    """Appends zeros up to what a GPU kernel takes: they change neither the scores nor the other columns of out.

    `column_axis`: of v.
    """
    multiple = _CUDA_HEADDIM_MULTIPLE if q.dtype not in FP8 else 2 * _CUDA_HEADDIM_MULTIPLE
    if options["softmax_scale"] is None and q.shape[-1] % multiple != 0:
        options["softmax_scale"] = q.shape[-1] ** -0.5  # of the caller's headdim, not of the padded one
    q, k = (t if t.shape[-1] % multiple == 0 else pad(t, (0, -t.shape[-1] % multiple)) for t in (q, k))
    missing = -v.shape[column_axis] % multiple
    return q, k, v if missing == 0 else pad(v, (0, missing) if column_axis == -1 else (0, 0, 0, missing))
