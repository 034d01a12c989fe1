"""Random problems, dense and packed, in every layout and mask, against the definition; see conftest.py for the seed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_reference import Array, Problem, assert_close, assert_lse_close, solve

import tandem

DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
SLACK = 32.0  # tests/op measures the error exactly; here a wrong stride or row is an error of about 1
GUARD = 16  # elements on either side of every output


def masks() -> st.SearchStrategy[dict[str, Any]]:
    side = st.one_of(st.just(-1), st.integers(0, 12))
    return st.fixed_dictionaries(
        {},
        optional={
            "causal": st.booleans(),
            "window": st.tuples(side, side),
            "attention_chunk": st.integers(0, 9),
            "alignment": st.sampled_from(["bottom-right", "top-left"]),
            "softcap": st.sampled_from([0.0, 0.7, 30.0]),
            "softmax_scale": st.sampled_from([0.0, -0.4, 0.125, 1.0]),
        },
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(DTYPES))
    nheads_k = draw(st.integers(1, 3))
    nheads_q = nheads_k * draw(st.integers(1, 3))
    headdim, headdim_v = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    lengths = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=0, max_size=4))
    packed = draw(st.booleans())
    options = draw(masks())
    if packed:
        gaps = [draw(st.integers(0, 3)) for _ in range(2)]
        offsets_q, offsets_k = (
            np.cumsum([0, *(pair[side] + gaps[side] for pair in lengths)], dtype=np.int32) for side in (0, 1)
        )
        rows, keys = (int(offsets_q[-1]) + gaps[0],), (int(offsets_k[-1]) + gaps[1],)
    else:
        offsets_q = offsets_k = None
        rows = (len(lengths), max([pair[0] for pair in lengths], default=0))
        keys = (len(lengths), max([pair[1] for pair in lengths], default=0))
    for side, name in enumerate(("seqused_q", "seqused_k")):
        if packed or draw(st.booleans()):
            options[name] = np.array([pair[side] for pair in lengths], np.int32)
    if draw(st.booleans()):
        options["sink"] = rng.standard_normal(nheads_q).astype(np.float64 if dtype == np.float64 else np.float32)
    interval_heads = draw(st.sampled_from([1, nheads_q]))
    interval_shape = (interval_heads, *rows) if packed else (rows[0], interval_heads, rows[1])
    if draw(st.booleans()):
        options["lo"] = rng.integers(-3, 20, interval_shape, np.int32)
    if draw(st.booleans()):
        options["hi"] = rng.integers(5, 45, interval_shape, np.int32)
    layout = draw(st.sampled_from(["contiguous", "heads first", "wide rows", "broadcast heads"]))
    q, k, v = (
        _array(rng, shape, dtype, layout)
        for shape in ((*rows, nheads_q, headdim), (*keys, nheads_k, headdim), (*keys, nheads_k, headdim_v))
    )
    return Problem(q, k, v, options, offsets_q, offsets_k), rng


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, layout: str) -> Array:
    x = rng.standard_normal(shape).astype(dtype)
    if layout == "heads first":
        return np.ascontiguousarray(np.swapaxes(x, -2, -3)).swapaxes(-2, -3)
    if layout == "wide rows":
        wide = np.full((*shape[:-1], shape[-1] + 3), np.nan, dtype)
        wide[..., : shape[-1]] = x
        return wide[..., : shape[-1]]
    return np.broadcast_to(x[..., :1, :], shape) if layout == "broadcast heads" else x


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@given(case=problems())
def test_random_problems(case: tuple[Problem, np.random.Generator], backend: str) -> None:
    problem, rng = case
    dtype = problem.q.dtype
    packed = () if problem.cu_seqlens_q is None else (problem.cu_seqlens_q, problem.cu_seqlens_k)
    forward = tandem.attention_varlen if packed else tandem.attention
    backward = tandem.attention_varlen_backward if packed else tandem.attention_backward
    shape = (*problem.q.shape[:-1], problem.v.shape[-1])
    guarded = np.full(2 * GUARD + int(np.prod(shape)), np.nan, dtype)
    out = guarded[GUARD : len(guarded) - GUARD].reshape(shape)

    # Checked mode refuses intervals that leave their sequence, which are legal otherwise: they are clamped [4].
    checked = not {"lo", "hi"} & set(problem.options)
    options = {**problem.options, "backend": backend, "checked": checked}
    _, lse = forward(problem.q, problem.k, problem.v, *packed, return_lse=True, out=out, **options)
    dout = rng.standard_normal(shape).astype(dtype)
    dlse = rng.standard_normal(lse.shape).astype(lse.dtype)
    gradients = backward(dout, problem.q, problem.k, problem.v, out, lse, *packed, dlse=dlse, **options)

    assert np.isnan(guarded[:GUARD]).all()
    assert np.isnan(guarded[len(guarded) - GUARD :]).all()
    exact, plain = solve(problem, dout, dlse), solve(problem, dout, dlse, dtype)
    assert_close("out", out, exact.out, plain.out, dtype, SLACK)
    assert_lse_close(lse, exact.lse)
    empty = np.swapaxes(lse, -1, -2) == -np.inf  # rows that see no key, or belong to no sequence
    assert not out[empty].any()
    assert not gradients[0][empty].any()
    for name, gradient in zip(("dq", "dk", "dv", "dsink"), gradients, strict=False):
        # dsink too is made of out, which is stored in its own type.
        assert_close(name, gradient, getattr(exact, name), getattr(plain, name), dtype, SLACK)
