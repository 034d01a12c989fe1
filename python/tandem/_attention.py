"""The public functions for NumPy arrays and for everything that speaks DLPack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from tandem import _core
from tandem._arrays import FLOATS, LSE_DTYPES, Array, operand, partials
from tandem._call import DENSE_AXES, PACKED_AXES, Call, Result, backward, forward, merge_partials, read_call
from tandem._options import BACKEND_NUMBERS, Alignment, AttentionOptions, VarlenAttentionOptions, read_options
from tandem.errors import TandemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    Lengths = Array | Sequence[int]


@overload
def attention(
    q: Array, k: Array, v: Array, *, return_lse: Literal[False] = False, **options: Unpack[AttentionOptions]
) -> Result: ...
@overload
def attention(
    q: Array, k: Array, v: Array, *, return_lse: Literal[True], **options: Unpack[AttentionOptions]
) -> tuple[Result, Result]: ...
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
    lo: Array | None = None,
    hi: Array | None = None,
    seqused_q: Lengths | None = None,
    seqused_k: Lengths | None = None,
    alignment: Alignment = "bottom-right",
    q_scale: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    v_transposed: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
    out_dtype: Any = None,
    backend: str | None = None,
    num_threads: int | None = None,
    checked: bool = False,
) -> Result | tuple[Result, Result]:
    """Exact attention: ``softmax(softmax_scale * q k^T) v`` over the keys that each query row sees.

    The promises are those of docs/CONTRACT.md, whose numbers stand in brackets.

    Args:
        q: (batch, seqlen_q, nheads_q, headdim); float64, float32, float16, bfloat16 or float8_e4m3fn (the NumPy types
            of ml_dtypes). NumPy arrays and objects with ``__dlpack__``. Strides are free, 0 included; an array whose
            last axis is not contiguous, that is misaligned or has negative strides is copied [10].
        k: (batch, seqlen_k, nheads_k, headdim), dtype of q. nheads_q is a multiple of nheads_k; query head h uses key
            head ``h // (nheads_q // nheads_k)`` [9].
        v: (batch, seqlen_k, nheads_k, headdim_v), dtype of q.
        causal: row i sees only keys ``j <= i + seqlen_k - seqlen_q`` [3].
        window: (left, right) keys that a row sees beside its own position; -1 opens a side. A sliding window of W keys
            that counts the row's own is ``(W - 1, 0)``.
        attention_chunk: rows see only keys of their own chunk of this many positions; 0: no chunks.
        softmax_scale: default ``1 / sqrt(headdim)`` [2].
        softcap: scores become ``softcap * tanh(score / softcap)``; 0: they stay.
        sink: (nheads_q), float32 (float64 for float64 q): one more logit per head in each row's denominator.
        lo, hi: int32, (batch or 1, nheads_q or 1, seqlen_q): row i also needs ``lo[i] <= j < hi[i]`` [4].
        seqused_q, seqused_k: int32 (batch) or ints: how many rows and keys of each sequence count.
        alignment: "bottom-right" aligns the last row with the last key, "top-left" the first with the first [3].
        q_scale, k_scale, v_scale: float32 factors of float8_e4m3fn values, (1), (batch, nheads) or (batch, nheads,
            ceil(seqlen / 128)) as `quantize_fp8` gives them; None: 1. q_scale may also have nheads_k heads.
        v_transposed: v is what ``quantize_fp8(v, transposed=True)`` gives.
        return_lse: also return the log-sum-exp.
        out: array to write the result to; it is returned.
        out_dtype: dtype of a new result: that of q (default; bfloat16 for fp8 q), or float32 for 16-bit and fp8 q.
        backend: "tiled", "reference" or "sm90"; None or "auto": the environment variable TANDEM_BACKEND, else the best.
        num_threads: CPU threads of this call; None: OpenMP's default. Changes no bit of the result [12].
        checked: validate lengths and intervals by value before running [13].

    Returns:
        out, (batch, seqlen_q, nheads_q, headdim_v); with return_lse (out, lse), lse being (batch, nheads_q, seqlen_q)
        in float32 (float64 for float64 q), natural logarithm [6]. A row that sees no key has out = 0 and
        lse = -inf [5]. On the CPU these are NumPy arrays, for GPU inputs arrays of the library that made q; work on
        a GPU is launched on its default stream.

    Raises:
        InvalidArgumentError: (a ValueError) arguments contradict each other or the contract.
        UnsupportedError: (a NotImplementedError) no backend, or not the forced one, can run this.
        NoDeviceError: the arrays live on a GPU that cannot serve.
        TypeError: an argument is of the wrong Python type.
    """
    call = read_call(
        DENSE_AXES,
        q=q,
        k=k,
        v=v,
        sink=sink,
        lo=lo,
        hi=hi,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        v_transposed=v_transposed,
        causal=causal,
        window=window,
        attention_chunk=attention_chunk,
        alignment=alignment,
        softmax_scale=softmax_scale,
        softcap=softcap,
        backend=backend,
        num_threads=num_threads,
        checked=checked,
    )
    return forward(call, return_lse, out, out_dtype)


@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Lengths,
    cu_seqlens_k: Lengths,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[VarlenAttentionOptions],
) -> Result: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Lengths,
    cu_seqlens_k: Lengths,
    *,
    return_lse: Literal[True],
    **options: Unpack[VarlenAttentionOptions],
) -> tuple[Result, Result]: ...
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Lengths,
    cu_seqlens_k: Lengths,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
    lo: Array | None = None,
    hi: Array | None = None,
    seqused_q: Lengths | None = None,
    seqused_k: Lengths | None = None,
    alignment: Alignment = "bottom-right",
    q_scale: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    v_transposed: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
    out_dtype: Any = None,
    backend: str | None = None,
    num_threads: int | None = None,
    checked: bool = False,
) -> Result | tuple[Result, Result]:
    """Attention over packed sequences of different lengths; what is not said here is as in `attention`.

    Args:
        q: (total_q, nheads_q, headdim).
        k: (total_k, nheads_k, headdim).
        v: (total_k, nheads_k, headdim_v).
        cu_seqlens_q, cu_seqlens_k: int32 (batch + 1) or ints: rows ``cu_seqlens[b]`` to ``cu_seqlens[b + 1]`` are
            sequence b. Non-decreasing, from 0 to at most the number of rows.
        max_seqlen_q, max_seqlen_k: the longest lengths, as a hint that is never trusted.
        lo, hi: int32, (nheads_q or 1, total_q): positions within the row's sequence.
        seqused_q, seqused_k: how many rows of each sequence count; the rest is a gap.

    Returns:
        out, (total_q, nheads_q, headdim_v); with return_lse (out, lse), lse being (nheads_q, total_q). Rows that
        belong to no sequence are 0, their lse is -inf [6, 8].

    Raises:
        As `attention`.
    """
    call = read_call(
        PACKED_AXES,
        q=q,
        k=k,
        v=v,
        sink=sink,
        lo=lo,
        hi=hi,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        v_transposed=v_transposed,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        causal=causal,
        window=window,
        attention_chunk=attention_chunk,
        alignment=alignment,
        softmax_scale=softmax_scale,
        softcap=softcap,
        backend=backend,
        num_threads=num_threads,
        checked=checked,
    )
    return forward(call, return_lse, out, out_dtype)


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
    lo: Array | None = None,
    hi: Array | None = None,
    seqused_q: Lengths | None = None,
    seqused_k: Lengths | None = None,
    alignment: Alignment = "bottom-right",
    backend: str | None = None,
    num_threads: int | None = None,
    deterministic: bool = False,
    checked: bool = False,
) -> tuple[Result, ...]:
    """The gradients of `attention` called with the same arguments.

    Args:
        dout: gradient of the loss by out; shape and dtype of out.
        out, lse: the forward's results.
        dlse: gradient by lse; shape and dtype of lse. Ignored on rows whose lse is not finite [6].
        deterministic: bitwise equal results on every run, or an error [12].

    Returns:
        (dq, dk, dv), with a sink (dq, dk, dv, dsink); shapes and dtypes of q, k, v, sink.

    Raises:
        As `attention`.
    """
    call = read_call(
        DENSE_AXES,
        q=q,
        k=k,
        v=v,
        out=out,
        lse=lse,
        dout=dout,
        dlse=dlse,
        sink=sink,
        lo=lo,
        hi=hi,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        causal=causal,
        window=window,
        attention_chunk=attention_chunk,
        alignment=alignment,
        softmax_scale=softmax_scale,
        softcap=softcap,
        backend=backend,
        num_threads=num_threads,
        deterministic=deterministic,
        checked=checked,
    )
    return backward(call)


def attention_varlen_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    cu_seqlens_q: Lengths,
    cu_seqlens_k: Lengths,
    *,
    dlse: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
    lo: Array | None = None,
    hi: Array | None = None,
    seqused_q: Lengths | None = None,
    seqused_k: Lengths | None = None,
    alignment: Alignment = "bottom-right",
    backend: str | None = None,
    num_threads: int | None = None,
    deterministic: bool = False,
    checked: bool = False,
) -> tuple[Result, ...]:
    """The gradients of `attention_varlen` called with the same arguments; see `attention_backward`.

    Returns:
        (dq, dk, dv), with a sink (dq, dk, dv, dsink). Rows that belong to no sequence are 0 [8].
    """
    call = read_call(
        PACKED_AXES,
        q=q,
        k=k,
        v=v,
        out=out,
        lse=lse,
        dout=dout,
        dlse=dlse,
        sink=sink,
        lo=lo,
        hi=hi,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        causal=causal,
        window=window,
        attention_chunk=attention_chunk,
        alignment=alignment,
        softmax_scale=softmax_scale,
        softcap=softcap,
        backend=backend,
        num_threads=num_threads,
        deterministic=deterministic,
        checked=checked,
    )
    return backward(call)


def merge(
    outs: Array | Sequence[Array],
    lses: Array | Sequence[Array],
    *,
    sink: Array | None = None,
    out_dtype: Any = None,
    backend: str | None = None,
    num_threads: int | None = None,
) -> tuple[Result, Result]:
    """Joins results of attention over disjoint sets of keys into the result over their union.

    ``lse = log(sum_n exp(lse_n) + exp(sink))`` and ``out = sum_n exp(lse_n - lse) out_n`` [6].

    Args:
        outs: a list of n partial results, or one array (n, batch, seqlen_q, nheads_q, headdim_v), or packed
            (n, total_q, nheads_q, headdim_v).
        lses: likewise, float32, (n, batch, nheads_q, seqlen_q) or packed (n, nheads_q, total_q). The partial results
            must not include the sink. A row whose lse is -inf counts as empty, whatever its out holds.
        sink: float32 (nheads_q), added once.
        out_dtype: dtype of the result; default: that of outs.

    Returns:
        (out, lse) without the first axis.

    Raises:
        As `attention`.
    """
    call = Call(
        {
            "out_partial": partials("outs", outs, FLOATS),
            "lse_partial": partials("lses", lses, LSE_DTYPES),
            **({} if sink is None else {"sink": operand("sink", sink, LSE_DTYPES)}),
        },
        read_options(backend=backend, num_threads=num_threads),
    )
    return merge_partials(call, out_dtype)


def info() -> dict[str, Any]:
    """What this installation can run.

    Returns:
        ``version``; ``default``, the backend that a CPU call runs on (None if the environment variable
        TANDEM_BACKEND forces one that cannot); ``backends``, for each name a dict of
        ``available`` and ``description`` (what it runs on, or why it cannot).
    """
    backends: dict[str, Any] = {}
    for name, backend in BACKEND_NUMBERS.items():
        device = (_core.CUDA if backend == _core.BACKEND_SM90 else _core.CPU, 0)
        available, reason = _core.backend_available(backend, device)
        description = _core.backend_description(backend, device) if available else reason
        backends[name] = {"available": available, "description": description}
    try:
        default = _core.backend_name(_core.backend_select(_core.BACKEND_AUTO, (_core.CPU, 0)))
    except TandemError:
        default = None
    return {"version": _core.version(), "default": default, "backends": backends}
