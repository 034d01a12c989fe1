"""Attention by its definition, in float64: an explicit matrix of which row sees which key, and textbook gradients.

With `dtype` (but for float64) all is computed in float32 instead, and the scores, the probabilities, the gradient of
the scores and the results are rounded to that type: plain attention as one would write it in that type, whose error is
the measure for ours (contract 16).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """Inputs of one call. Dense: q (batch, seqlen_q, nheads_q, headdim). Packed: with cu_seqlens and no batch axis."""

    q: Array
    k: Array
    v: Array
    options: dict[str, Any] = field(default_factory=dict)  # of tandem.attention
    cu_seqlens_q: Array | None = None
    cu_seqlens_k: Array | None = None


@dataclass(frozen=True)
class Result:
    out: Array
    lse: Array
    dq: Array | None = None
    dk: Array | None = None
    dv: Array | None = None
    dsink: Array | None = None


@dataclass(frozen=True)
class Sequence:
    """Where the rows, keys and statistics of one sequence lie in the arrays."""

    index: int
    rows: tuple[Any, ...]  # into q and out, up to the heads axis
    keys: tuple[Any, ...]
    statistics: tuple[Any, ...]  # into lse, behind the heads axis when packed
    rows_used: int
    keys_used: int


def visible(
    rows: int,
    keys: int,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    alignment: str = "bottom-right",
    lo: Array | None = None,
    hi: Array | None = None,
) -> Array:
    """(rows, keys) booleans: contract 3 and 4, letter by letter."""
    position = np.arange(rows)[:, None] + (keys - rows if alignment == "bottom-right" else 0)
    key = np.arange(keys)[None, :]
    see = np.ones((rows, keys), bool)
    if causal:
        see &= key <= position
    if window[0] != -1:
        see &= key >= position - window[0]
    if window[1] != -1:
        see &= key <= position + window[1]
    if attention_chunk:
        see &= key // attention_chunk == position // attention_chunk
    if lo is not None:
        see &= key >= lo[:, None]
    if hi is not None:
        see &= key < hi[:, None]
    return see


def solve(problem: Problem, dout: Array | None = None, dlse: Array | None = None, dtype: Any = None) -> Result:
    """The forward and, if dout is given, the backward."""
    work = np.float64 if dtype is None or np.dtype(dtype) == np.float64 else np.float32
    q, k, v = (np.asarray(x, work) for x in (problem.q, problem.k, problem.v))
    nheads = q.shape[-2]
    lse_shape = (nheads, q.shape[0]) if problem.cu_seqlens_q is not None else (q.shape[0], nheads, q.shape[1])
    result = Result(np.zeros((*q.shape[:-1], v.shape[-1])), np.full(lse_shape, -np.inf))
    if dout is not None:
        sink = problem.options.get("sink")
        dsink = None if sink is None else np.zeros(nheads)
        result = Result(result.out, result.lse, *(np.zeros(x.shape) for x in (q, k, v)), dsink)
    for sequence in _sequences(problem):
        for head in range(nheads):
            _solve_head(problem, sequence, head, (q, k, v), result, dout, dlse, dtype)
    return result


def _sequences(problem: Problem) -> Iterator[Sequence]:
    used_q, used_k = (problem.options.get(f"seqused_{x}") for x in "qk")
    if problem.cu_seqlens_q is None or problem.cu_seqlens_k is None:
        batch, seqlen_q = problem.q.shape[:2]
        for b in range(batch):
            rows = seqlen_q if used_q is None else int(used_q[b])
            keys = problem.k.shape[1] if used_k is None else int(used_k[b])
            yield Sequence(b, (b, slice(rows)), (b, slice(keys)), (slice(rows),), rows, keys)
        return
    for b in range(len(problem.cu_seqlens_q) - 1):
        first_q, first_k = int(problem.cu_seqlens_q[b]), int(problem.cu_seqlens_k[b])
        rows = int(problem.cu_seqlens_q[b + 1]) - first_q if used_q is None else int(used_q[b])
        keys = int(problem.cu_seqlens_k[b + 1]) - first_k if used_k is None else int(used_k[b])
        q_slice, k_slice = slice(first_q, first_q + rows), slice(first_k, first_k + keys)
        yield Sequence(b, (q_slice,), (k_slice,), (q_slice,), rows, keys)


def _interval(problem: Problem, name: str, sequence: Sequence, head: int) -> Array | None:
    """lo or hi of this sequence and head, one value a row."""
    values = problem.options.get(name)
    if values is None:
        return None
    if problem.cu_seqlens_q is None:
        values = values[min(sequence.index, values.shape[0] - 1)]
    return np.asarray(values[min(head, values.shape[0] - 1)][sequence.statistics], np.int64)


def _see(problem: Problem, sequence: Sequence, head: int) -> Array:
    names = ("causal", "window", "attention_chunk", "alignment")
    options = {name: problem.options[name] for name in names if name in problem.options}
    lo, hi = (_interval(problem, name, sequence, head) for name in ("lo", "hi"))
    return visible(sequence.rows_used, sequence.keys_used, **options, lo=lo, hi=hi)


def _solve_head(
    problem: Problem,
    sequence: Sequence,
    head: int,
    qkv: tuple[Array, Array, Array],
    result: Result,
    dout: Array | None,
    dlse: Array | None,
    dtype: Any,
) -> None:
    q_all, k_all, v_all = qkv
    work = q_all.dtype

    def rounded(x: Array) -> Array:
        return x if dtype is None else x.astype(dtype).astype(work)

    key_head = head // (q_all.shape[-2] // k_all.shape[-2])
    rows, keys = (*sequence.rows, head), (*sequence.keys, key_head)
    packed = problem.cu_seqlens_q is not None
    statistics = (head, *sequence.statistics) if packed else (sequence.index, head, *sequence.statistics)
    q, k, v = q_all[rows], k_all[keys], v_all[keys]

    scale = problem.options.get("softmax_scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    softcap = problem.options.get("softcap", 0.0)
    sink = problem.options.get("sink")
    see = _see(problem, sequence, head)

    raw = rounded(scale * (q @ k.T))
    capped = rounded(softcap * np.tanh(raw / softcap)) if softcap else raw
    scores = np.where(see, capped, -np.inf)
    sink_column = np.full((len(q), 1), -np.inf if sink is None else sink[head], work)
    logits = np.concatenate([scores, sink_column], axis=1)
    peak = logits.max(axis=1, keepdims=True)
    finite_peak = np.where(np.isfinite(peak), peak, 0.0)
    weights = np.exp(logits - finite_peak)
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (finite_peak + np.log(total))[:, 0]
    all_probabilities = weights / np.where(total > 0, total, 1.0)
    probabilities = rounded(all_probabilities[:, :-1])
    out = rounded(probabilities @ v)
    result.out[rows] = out
    result.lse[statistics] = lse
    if dout is None or result.dq is None or result.dk is None or result.dv is None:
        return

    d_out = np.asarray(dout, work)[rows]
    d_lse = np.zeros(len(q), work) if dlse is None else np.asarray(dlse, work)[statistics]
    d_lse = np.where(np.isfinite(lse), d_lse, 0.0)
    if work == np.float32:  # a backward rebuilds P from the stored LSE
        probabilities = rounded(np.exp(scores - np.where(np.isfinite(lse), lse, 0)[:, None]))
    d_probabilities = d_out @ v.T
    # Softmax: dS_j = P_j (dP_j - sum_m P_m dP_m); log-sum-exp: d LSE / d S_j = P_j.
    mean = (d_out * out).sum(axis=1)
    d_scores = probabilities * (d_probabilities - mean[:, None] + d_lse[:, None])
    if softcap:
        d_scores = d_scores * (1.0 - np.tanh(raw / softcap) ** 2)
    d_scores = rounded(d_scores)
    result.dq[rows] = rounded(scale * (d_scores @ k))
    result.dk[keys] += scale * (d_scores.T @ q)
    result.dv[keys] += probabilities.T @ d_out
    if result.dsink is not None:  # the sink is one more column, whose value vector is 0
        result.dsink[head] += (all_probabilities[:, -1] * (d_lse - mean)).sum()


def assert_close(name: str, ours: Array, exact: Array, plain: Array, dtype: Any, slack: float = 4.0) -> None:
    """Contract 16: at most twice the error of plain attention in the type, plus two units in the last place.

    `slack` adds that many units in the last place of 1: with so few elements plain attention's error may be small by
    luck, and BLAS sums in an order of its own. tests/op measures errors without it.
    """
    assert ours.shape == exact.shape, f"{name}: {ours.shape} instead of {exact.shape}"
    if exact.size == 0:
        return
    values = np.asarray(ours, np.float64)
    assert np.isfinite(values).all(), f"{name} is not finite"
    largest = np.abs(exact).max()
    allowed = 2 * np.abs(plain - exact).max() + 2 * unit_in_last_place(largest, dtype)
    if np.dtype(dtype) == np.float64:  # what is exact here has been computed in float64 too
        allowed = 1e-13 * max(1.0, largest)
    allowed += slack * unit_in_last_place(1.0, dtype)
    error = np.abs(values - exact).max()
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g} at magnitude {largest:.3g}"


def unit_in_last_place(magnitude: float, dtype: Any) -> float:
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[np.dtype(dtype).name]
    if magnitude == 0:
        return float(np.finfo(np.float32).tiny)
    return float(2.0 ** (np.floor(np.log2(magnitude)) - bits))


def assert_lse_close(ours: Array, exact: Array) -> None:
    assert ours.shape == exact.shape
    infinite = ~np.isfinite(exact)
    np.testing.assert_array_equal(np.asarray(ours, np.float64)[infinite], exact[infinite])
    values, want = np.asarray(ours, np.float64)[~infinite], exact[~infinite]
    assert (np.abs(values - want) <= 1e-5 * np.maximum(1.0, np.abs(want))).all()
