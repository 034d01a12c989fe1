"""tandem.attention and its kin against attention written out in float64 (numpy_reference.py)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from numpy_reference import Array, Problem, assert_close, assert_lse_close, solve

import tandem

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

# (batch, seqlen_q, seqlen_k, nheads_q, nheads_k, headdim, headdim_v)
SHAPES = [(2, 5, 7, 4, 2, 16, 16), (1, 70, 33, 3, 1, 40, 24), (1, 33, 130, 2, 2, 7, 64)]

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "causal top-left": {"causal": True, "alignment": "top-left"},
    "window": {"window": (3, 1)},
    "open window": {"window": (-1, 2)},
    "causal window": {"causal": True, "window": (4, -1)},
    "chunks": {"attention_chunk": 5},
    "causal chunks": {"attention_chunk": 4, "causal": True},
    "softcap": {"softcap": 1.5},
    "scale": {"softmax_scale": -0.3, "causal": True},
    "scale 0": {"softmax_scale": 0.0},
}


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def dense_problem(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike, options: dict[str, Any]
) -> Problem:
    batch, seqlen_q, seqlen_k, nheads_q, nheads_k, headdim, headdim_v = shape
    return Problem(
        random(rng, (batch, seqlen_q, nheads_q, headdim), dtype),
        random(rng, (batch, seqlen_k, nheads_k, headdim), dtype),
        random(rng, (batch, seqlen_k, nheads_k, headdim_v), dtype),
        options,
    )


def packed_problem(
    rng: np.random.Generator, lengths: list[tuple[int, int]], heads: tuple[int, int], headdim: int, dtype: Any
) -> Problem:
    """Sequences of these (rows, keys), one after the other, with two spare rows at the end."""
    cu_seqlens_q, cu_seqlens_k = (np.cumsum([0, *(pair[side] for pair in lengths)], dtype=np.int32) for side in (0, 1))
    total_q, total_k = int(cu_seqlens_q[-1]) + 2, int(cu_seqlens_k[-1]) + 2
    return Problem(
        random(rng, (total_q, heads[0], headdim), dtype),
        random(rng, (total_k, heads[1], headdim), dtype),
        random(rng, (total_k, heads[1], headdim), dtype),
        {},
        cu_seqlens_q,
        cu_seqlens_k,
    )


def check(problem: Problem, rng: np.random.Generator, backend: str, *, lse_gradient: bool = False) -> None:
    """Runs forward and backward and compares all results; outputs are written over NaN."""
    dtype = problem.q.dtype
    packed = () if problem.cu_seqlens_q is None else (problem.cu_seqlens_q, problem.cu_seqlens_k)
    out = np.full((*problem.q.shape[:-1], problem.v.shape[-1]), np.nan, dtype)
    options = {**problem.options, "backend": backend}
    forward = tandem.attention_varlen if packed else tandem.attention
    backward = tandem.attention_varlen_backward if packed else tandem.attention_backward

    returned, lse = forward(problem.q, problem.k, problem.v, *packed, return_lse=True, out=out, **options)
    assert returned is out
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    dout = random(rng, out.shape, dtype)
    dlse = random(rng, lse.shape, lse.dtype) if lse_gradient else None
    gradients = backward(dout, problem.q, problem.k, problem.v, out, lse, *packed, dlse=dlse, **options)

    exact, plain = solve(problem, dout, dlse), solve(problem, dout, dlse, dtype)
    assert_close("out", out, exact.out, plain.out, dtype)
    assert_lse_close(lse, exact.lse)
    names = ["dq", "dk", "dv", "dsink"]
    assert len(gradients) == (3 if problem.options.get("sink") is None else 4)
    for name, gradient in zip(names, gradients, strict=False):
        gradient_dtype = lse.dtype if name == "dsink" else dtype
        assert gradient.dtype == gradient_dtype
        assert_close(name, gradient, getattr(exact, name), getattr(plain, name), gradient_dtype)


def test_the_reference_s_gradients_are_those_of_its_forward(rng: np.random.Generator) -> None:
    """By central differences, so that a mistake in the textbook formulas above cannot hide."""
    sink = random(rng, (2,), np.float64)
    options = {"causal": True, "softcap": 2.0, "sink": sink}
    problem = dense_problem(rng, (1, 3, 4, 2, 1, 3, 2), np.float64, options)
    dout, dlse = random(rng, (1, 3, 2, 2), np.float64), random(rng, (1, 2, 3), np.float64)
    result = solve(problem, dout, dlse)

    def loss() -> float:
        forward = solve(problem)
        return float((forward.out * dout).sum() + (forward.lse * dlse).sum())

    step = 1e-6
    for name, array in (("dq", problem.q), ("dk", problem.k), ("dv", problem.v), ("dsink", sink)):
        numeric = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + step
            above = loss()
            array[index] = kept - step
            numeric[index] = (above - loss()) / (2 * step)
            array[index] = kept
        np.testing.assert_allclose(getattr(result, name), numeric, atol=1e-8)


# C108: grouped heads, backward included, through the module as it is installed.
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_dense(rng: np.random.Generator, backend: str, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    check(dense_problem(rng, shape, dtype, OPTIONS[name]), rng, backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_sink_intervals_lengths_and_gradient_through_lse(rng: np.random.Generator, backend: str, dtype: Any) -> None:
    batch, seqlen_q, seqlen_k = 3, 9, 12
    lo = rng.integers(0, 6, (batch, 1, seqlen_q), np.int32)
    options = {
        "sink": random(rng, (4,), np.float64 if dtype == np.float64 else np.float32),
        "lo": lo,
        "hi": lo + rng.integers(0, 8, (batch, 4, seqlen_q), np.int32),
        "seqused_q": np.array([9, 0, 4], np.int32),
        "seqused_k": np.array([5, 12, 0], np.int32),
    }
    check(dense_problem(rng, (batch, seqlen_q, seqlen_k, 4, 2, 8, 8), dtype, options), rng, backend, lse_gradient=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", OPTIONS)
def test_packed(rng: np.random.Generator, backend: str, name: str, dtype: Any) -> None:
    problem = packed_problem(rng, [(5, 9), (0, 3), (9, 5), (1, 30), (2, 0), (40, 1)], (4, 2), 12, dtype)
    problem.options.update(OPTIONS[name])
    check(problem, rng, backend, lse_gradient=True)


def test_packed_with_gaps_intervals_and_sink(rng: np.random.Generator, backend: str) -> None:
    problem = packed_problem(rng, [(6, 9), (3, 3), (8, 5)], (2, 1), 8, np.float32)
    total_q = problem.q.shape[0]
    problem.options.update(
        causal=True,
        seqused_q=np.array([4, 3, 5], np.int32),
        seqused_k=np.array([7, 1, 5], np.int32),
        lo=rng.integers(0, 3, (1, total_q), np.int32),
        hi=rng.integers(2, 8, (2, total_q), np.int32),
        sink=random(rng, (2,), np.float32),
    )
    check(problem, rng, backend, lse_gradient=True)


def test_result_in_float32(rng: np.random.Generator, backend: str) -> None:
    problem = dense_problem(rng, SHAPES[0], np.float16, {"causal": True})
    out = tandem.attention(problem.q, problem.k, problem.v, causal=True, out_dtype="float32", backend=backend)
    assert out.dtype == np.float32
    exact, plain = solve(problem), solve(problem, dtype=np.float16)
    assert_close("out", out, exact.out, plain.out, np.float32)


def test_deterministic_backward_repeats_its_bits(rng: np.random.Generator, backend: str) -> None:
    problem = dense_problem(rng, (2, 65, 70, 4, 2, 32, 32), np.float32, {})
    arrays = (problem.q, problem.k, problem.v)
    out, lse = tandem.attention(*arrays, causal=True, return_lse=True, backend=backend)
    dout = random(rng, out.shape, np.float32)

    def run(threads: int) -> list[bytes]:
        gradients = tandem.attention_backward(
            dout, *arrays, out, lse, causal=True, deterministic=True, backend=backend, num_threads=threads
        )
        return [gradient.tobytes() for gradient in gradients]

    assert run(1) == run(2) == run(2)
