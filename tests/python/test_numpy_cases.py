"""Cases from the field, by their numbers, with the values that follow from the definition."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy_reference import Array, Problem, assert_close, assert_lse_close, solve

import tandem

LSE_EMPTY = -np.inf


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def qkv(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> tuple[Array, Array, Array]:
    return normal(rng, *shape, dtype=dtype), normal(rng, *shape, dtype=dtype), normal(rng, *shape, dtype=dtype)


# ------------------------------------------------------------------------------------------- empty and fully masked


def test_C01_more_rows_than_keys_causal(rng: np.random.Generator, backend: str) -> None:
    q = normal(rng, 1, 5, 1, 64, dtype=np.float16)
    k, v = normal(rng, 1, 2, 1, 64, dtype=np.float16), normal(rng, 1, 2, 1, 64, dtype=np.float16)
    out, lse = tandem.attention(q, k, v, causal=True, return_lse=True, backend=backend)
    assert (out[0, :3] == 0).all()
    assert (lse[0, 0, :3] == LSE_EMPTY).all()
    np.testing.assert_array_equal(out[0, 3], v[0, 0])
    score = float(q[0, 3, 0].astype(np.float64) @ k[0, 0, 0].astype(np.float64)) / 8
    assert lse[0, 0, 3] == pytest.approx(score, rel=1e-5)
    problem = Problem(q, k, v, {"causal": True})
    assert_close("out", out, solve(problem).out, solve(problem, dtype=np.float16).out, np.float16)


def test_C02_alignments(backend: str) -> None:
    """With V the unit vectors and equal scores, out shows which keys a row sees."""
    q, k = np.zeros((1, 2, 1, 4), np.float32), np.zeros((1, 5, 1, 4), np.float32)
    v = np.eye(5, dtype=np.float32).reshape(1, 5, 1, 5)
    bottom_right = tandem.attention(q, k, v, causal=True, backend=backend)[0, :, 0] > 0
    np.testing.assert_array_equal(bottom_right, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    top_left = tandem.attention(q, k, v, causal=True, alignment="top-left", backend=backend)[0, :, 0] > 0
    np.testing.assert_array_equal(top_left, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]])


def test_C07_no_query_rows_at_all(rng: np.random.Generator, backend: str) -> None:
    k, v = normal(rng, 4096, 1, 8), normal(rng, 4096, 1, 8)
    q = np.empty((0, 1, 8), np.float32)
    offsets = ([0, 0], [0, 4096])
    out, lse = tandem.attention_varlen(q, k, v, *offsets, max_seqlen_q=0, return_lse=True, backend=backend)
    assert out.shape == (0, 1, 8)
    assert lse.shape == (1, 0)
    dq, dk, dv = tandem.attention_varlen_backward(out, q, k, v, out, lse, *offsets, backend=backend)
    assert dq.shape == (0, 1, 8)
    assert dk.shape == dv.shape == (4096, 1, 8)
    assert not dk.any()
    assert not dv.any()


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, 3952, 16), (2, 0, 16), (0, 0, 0)])
def test_C09_empty_batch_or_no_rows(backend: str, batch: int, rows: int, keys: int) -> None:
    q = np.empty((batch, rows, 10, 64), np.float32)
    k = np.ones((batch, keys, 10, 64), np.float32)
    out, lse = tandem.attention(q, k, k, return_lse=True, backend=backend)
    assert out.shape == (batch, rows, 10, 64)
    assert lse.shape == (batch, 10, rows)
    dq, dk, dv = tandem.attention_backward(out, q, k, k, out, lse, backend=backend)
    assert dq.shape == q.shape
    assert dk.shape == dv.shape == k.shape
    assert not dk.any()
    assert not dv.any()


def test_C09_packed_without_sequences(backend: str) -> None:
    q = np.empty((0, 2, 8), np.float32)
    out, lse = tandem.attention_varlen(q, q, q, [0], [0], return_lse=True, backend=backend)
    assert out.shape == (0, 2, 8)
    assert lse.shape == (2, 0)


@pytest.mark.parametrize("causal", [False, True])
def test_C10_no_keys(rng: np.random.Generator, backend: str, causal: bool) -> None:
    q, empty = normal(rng, 2, 7, 3, 8), np.empty((2, 0, 3, 8), np.float32)
    out, lse = tandem.attention(q, empty, empty, causal=causal, return_lse=True, backend=backend)
    assert not out.any()
    assert (lse == LSE_EMPTY).all()
    dq, dk, dv = tandem.attention_backward(q, q, empty, empty, out, lse, causal=causal, backend=backend)
    assert dq.shape == q.shape
    assert not dq.any()
    assert dk.shape == dv.shape == empty.shape


def test_contract_5_no_keys_but_a_sink(rng: np.random.Generator, backend: str) -> None:
    q, empty = normal(rng, 1, 3, 2, 8), np.empty((1, 0, 2, 8), np.float32)
    sink = np.array([0.5, -2.0], np.float32)
    out, lse = tandem.attention(q, empty, empty, sink=sink, return_lse=True, backend=backend)
    assert not out.any()
    np.testing.assert_array_equal(lse, np.broadcast_to(sink[None, :, None], (1, 2, 3)))


# ----------------------------------------------------------------------------------------------------------- merging


def test_C13_merge_of_empty_parts(backend: str) -> None:
    empty, no_lse = np.zeros((1, 1, 1, 2), np.float32), np.full((1, 1, 1), LSE_EMPTY, np.float32)
    out, lse = tandem.merge([empty, empty], [no_lse, no_lse], backend=backend)
    assert not out.any()
    assert (lse == LSE_EMPTY).all()

    part = np.array([0.1, -3.3], np.float32).reshape(1, 1, 1, 2)
    part_lse = np.full((1, 1, 1), 1.7, np.float32)
    for outs, lses in (([empty, part], [no_lse, part_lse]), ([part, empty], [part_lse, no_lse])):
        out, lse = tandem.merge(outs, lses, backend=backend)
        assert out.tobytes() == part.tobytes()
        assert lse.tobytes() == part_lse.tobytes()

    poisoned = np.full_like(part, np.nan)
    assert tandem.merge([poisoned, part], [no_lse, part_lse], backend=backend)[0].tobytes() == part.tobytes()


def test_C13_merge_of_two_parts(backend: str) -> None:
    outs = np.array([[2.0], [5.0]], np.float32).reshape(2, 1, 1, 1, 1)
    lses = np.array([1.0, 2.0], np.float32).reshape(2, 1, 1, 1)
    out, lse = tandem.merge(outs, lses, backend=backend)
    assert lse.item() == pytest.approx(2.3132617, abs=1e-6)
    weight = 1 / (1 + math.e)
    assert out.item() == pytest.approx(2 * weight + 5 * (1 - weight), rel=1e-6)


def test_merge_adds_the_sink_once(backend: str) -> None:
    outs, lses = np.full((2, 1, 1, 1, 1), 6.0, np.float32), np.zeros((2, 1, 1, 1), np.float32)
    out, lse = tandem.merge(outs, lses, sink=np.zeros(1, np.float32), backend=backend)
    assert out.item() == pytest.approx(4.0)
    assert lse.item() == pytest.approx(math.log(3))


def test_C69_keys_in_three_parts_forward_and_backward(rng: np.random.Generator, backend: str) -> None:
    q, k, v = qkv(rng, 2, 11, 4, 16)
    dout = normal(rng, 2, 11, 4, 16)
    parts = [slice(0, 4), slice(4, 5), slice(5, 11)]
    partial = [tandem.attention(q, k[:, part], v[:, part], return_lse=True, backend=backend) for part in parts]
    out, lse = tandem.merge([each[0] for each in partial], [each[1] for each in partial], backend=backend)
    problem = Problem(q, k, v)
    exact, plain = solve(problem, dout), solve(problem, dout, dtype=np.float32)
    assert_lse_close(lse, exact.lse)
    np.testing.assert_allclose(out, exact.out, atol=4e-7)

    dq = np.zeros_like(q)
    dk, dv = np.empty_like(k), np.empty_like(v)
    for part in parts:
        part_dq, dk[:, part], dv[:, part] = tandem.attention_backward(
            dout, q, k[:, part], v[:, part], out, lse, backend=backend
        )
        dq += part_dq
    for name, ours in (("dq", dq), ("dk", dk), ("dv", dv)):
        assert_close(name, ours, getattr(exact, name), getattr(plain, name), np.float16)


def test_merge_of_packed_parts_in_another_dtype(rng: np.random.Generator, backend: str) -> None:
    q, k, v = normal(rng, 6, 2, 8), normal(rng, 8, 2, 8), normal(rng, 8, 2, 8)
    halves = [
        tandem.attention_varlen(q, k[part], v[part], [0, 6], [0, 4], return_lse=True, backend=backend)
        for part in (slice(0, 4), slice(4, 8))
    ]
    outs, lses = np.stack([each[0] for each in halves]), np.stack([each[1] for each in halves])
    out, lse = tandem.merge(outs, lses, out_dtype=np.float16, backend=backend)
    assert out.dtype == np.float16
    exact = solve(Problem(q[None], k[None], v[None]))
    np.testing.assert_allclose(out, exact.out[0], atol=2e-3)
    assert_lse_close(lse, exact.lse[0])


# -------------------------------------------------------------------------------------------- masks, softcap and sink


def test_C54_a_window_of_four_tokens(backend: str) -> None:
    q = np.zeros((1, 8, 1, 4), np.float32)
    v = np.eye(8, dtype=np.float32).reshape(1, 8, 1, 8)
    four = tandem.attention(q, q, v, window=(3, 0), backend=backend)[0, 5, 0]
    np.testing.assert_array_equal(np.flatnonzero(four), [2, 3, 4, 5])
    five = tandem.attention(q, q, v, window=(4, 0), backend=backend)[0, 5, 0]
    np.testing.assert_array_equal(np.flatnonzero(five), [1, 2, 3, 4, 5])


@pytest.mark.parametrize("window", [(-1, -3), (-5, 2)])
def test_C56_only_minus_one_opens_a_window(rng: np.random.Generator, window: tuple[int, int]) -> None:
    with pytest.raises(tandem.InvalidArgumentError, match="window"):
        tandem.attention(*qkv(rng, 1, 4, 1, 8), window=window)


def test_C60_chunks(backend: str) -> None:
    q = np.zeros((1, 8, 1, 4), np.float32)
    v = np.eye(8, dtype=np.float32).reshape(1, 8, 1, 8)
    out = tandem.attention(q, q, v, causal=True, attention_chunk=4, backend=backend)[0, :, 0] > 0
    expected = np.zeros((8, 8), bool)
    for row in range(8):
        expected[row, row // 4 * 4 : row + 1] = True
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", ["mask", "attn_mask", "bias", "dropout_p"])
def test_C61_what_is_not_offered_is_refused(rng: np.random.Generator, name: str) -> None:
    q, k, v = qkv(rng, 1, 4, 1, 8)
    with pytest.raises(TypeError, match=name):
        tandem.attention(q, k, v, **{name: np.ones((1, 1, 4, 4), bool)})


def test_C64_sink(backend: str) -> None:
    q, k = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 2, 1, 1), np.float32)
    v = np.array([3.0, 6.0], np.float32).reshape(1, 2, 1, 1)
    sink = np.zeros(1, np.float32)
    out, lse = tandem.attention(q, k, v, sink=sink, return_lse=True, backend=backend)
    assert out.item() == pytest.approx(3.0)
    assert lse.item() == pytest.approx(math.log(3))  # the sink is part of the denominator
    dout = np.full_like(out, 2.0)
    *_, dsink = tandem.attention_backward(dout, q, k, v, out, lse, sink=sink, backend=backend)
    assert dsink.item() == pytest.approx(-1 / 3 * 2.0 * 3.0)


# ------------------------------------------------------------------------------------------------------- log-sum-exp


@pytest.mark.parametrize("keys", [1, 2, 3, 5, 1023, 1024])
def test_C65_lse_is_the_natural_logarithm(backend: str, keys: int) -> None:
    q, k = np.zeros((2, 1, 3, 8), np.float32), np.ones((2, keys, 3, 8), np.float32)
    _, lse = tandem.attention(q, k, k, return_lse=True, backend=backend)
    assert lse.shape == (2, 3, 1)
    assert lse.dtype == np.float32
    np.testing.assert_allclose(lse, math.log(keys), rtol=1e-6, atol=1e-6)
    _, lse = tandem.attention_varlen(q[0], k[0], k[0], [0, 1], [0, keys], return_lse=True, backend=backend)
    assert lse.shape == (3, 1)
    np.testing.assert_allclose(lse, math.log(keys), rtol=1e-6, atol=1e-6)


def test_C67_gradient_through_lse(backend: str) -> None:
    """Scores 0 and ln 3, so P = (1/4, 3/4). With q = scale = 1, dK is dS; with k = (0, ln 3), dQ is dS_1 ln 3."""
    q, k = np.ones((1, 1, 1, 1), np.float32), np.array([0, math.log(3)], np.float32).reshape(1, 2, 1, 1)
    v = np.array([0.0, 4.0], np.float32).reshape(1, 2, 1, 1)
    out, lse = tandem.attention(q, k, v, softmax_scale=1.0, return_lse=True, backend=backend)
    assert out.item() == pytest.approx(3.0)
    assert lse.item() == pytest.approx(math.log(4))

    def gradients(dout: float, dlse: float) -> tuple[Array, ...]:
        return tandem.attention_backward(
            np.full_like(out, dout),
            *(q, k, v, out, lse),
            dlse=np.full_like(lse, dlse),
            softmax_scale=1.0,
            backend=backend,
        )

    dq, dk, dv = gradients(dout=0.0, dlse=1.0)
    np.testing.assert_allclose(dk.ravel(), [0.25, 0.75], rtol=1e-6)
    assert dq.item() == pytest.approx(0.75 * math.log(3))
    assert not dv.any()
    dq, dk, dv = gradients(dout=1.0, dlse=0.0)
    np.testing.assert_allclose(dk.ravel(), [-0.75, 0.75], rtol=1e-6)
    np.testing.assert_allclose(dv.ravel(), [0.25, 0.75], rtol=1e-6)
    assert dq.item() == pytest.approx(0.75 * math.log(3))


# ---------------------------------------------------------------------------------------------------------- isolation


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_C15_garbage_beyond_the_used_keys(backend: str, dtype: Any, poison: float) -> None:
    q = np.full((2, 1, 1, 64), 0.5, dtype)
    k, v = np.full((2, 3, 1, 64), 0.5, dtype), np.full((2, 3, 1, 64), 0.5, dtype)
    k[0, 1:], v[0, 1:] = poison, poison
    out, lse = tandem.attention(q, k, v, seqused_k=[1, 3], return_lse=True, backend=backend)
    assert (out == np.asarray(0.5, dtype)).all()
    assert np.isfinite(lse).all()


def test_C20_gaps_between_packed_sequences(rng: np.random.Generator, backend: str) -> None:
    lengths, offsets = [2, 3, 1], [0, 3, 7, 9]
    q, k, v = normal(rng, 9, 2, 8), normal(rng, 9, 2, 8), normal(rng, 9, 2, 8)
    used = np.concatenate([np.arange(offsets[i], offsets[i] + lengths[i]) for i in range(3)])
    dense_offsets = [0, 2, 5, 6]
    options = {"causal": True, "backend": backend}
    gaps = {"seqused_q": lengths, "seqused_k": lengths, **options}

    out, lse = tandem.attention_varlen(q, k, v, offsets, offsets, return_lse=True, **gaps)
    packed = [x[used].copy() for x in (q, k, v)]
    packed_out, packed_lse = tandem.attention_varlen(*packed, dense_offsets, dense_offsets, return_lse=True, **options)
    np.testing.assert_array_equal(out[used], packed_out)
    np.testing.assert_array_equal(lse[:, used], packed_lse)

    outside = np.setdiff1d(np.arange(9), used)
    assert not out[outside].any()
    assert (lse[:, outside] == LSE_EMPTY).all()

    dout = normal(rng, 9, 2, 8)
    gradients = tandem.attention_varlen_backward(dout, q, k, v, out, lse, offsets, offsets, **gaps)
    packed_gradients = tandem.attention_varlen_backward(
        dout[used].copy(), *packed, packed_out, packed_lse, dense_offsets, dense_offsets, **options
    )
    for ours, expected in zip(gradients, packed_gradients, strict=True):
        np.testing.assert_array_equal(ours[used], expected)
        assert not ours[outside].any()


# --------------------------------------------------------------------------------------------------------- validation


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        (np.array([0, 4], np.int64), "cu_seqlens_q has dtype int64; allowed: int32"),
        (np.zeros((1, 2), np.int32), "cu_seqlens_q"),
        (np.array([], np.int32), "cu_seqlens_q"),
    ],
    ids=["int64", "two axes", "no entry"],
)
def test_C90_offsets_of_the_wrong_kind(rng: np.random.Generator, offsets: Array, error: str) -> None:
    x = normal(rng, 4, 1, 8)
    with pytest.raises(tandem.InvalidArgumentError, match=error):
        tandem.attention_varlen(x, x, x, offsets, [0, 4])


def test_C90_offsets_of_different_batches(rng: np.random.Generator) -> None:
    x = normal(rng, 4, 1, 8)
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_k"):
        tandem.attention_varlen(x, x, x, [0, 2, 4], [0, 4])


@pytest.mark.parametrize("offsets", [[5, 8], [0, 3, 1, 4], [0, 768]], ids=["starts at 5", "decreases", "too long"])
def test_C90_wrong_offsets_are_caught_when_checked_and_harmless_otherwise(
    rng: np.random.Generator, backend: str, offsets: list[int]
) -> None:
    x = normal(rng, 8, 1, 8)
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_q"):
        tandem.attention_varlen(x, x, x, offsets, offsets, checked=True, backend=backend)
    room = np.full((24, 1, 8), 7.0, np.float32)
    tandem.attention_varlen(x, x, x, offsets, offsets, out=room[8:16], backend=backend)
    assert np.isfinite(room[8:16]).all()
    assert (room[:8] == 7).all()
    assert (room[16:] == 7).all()


def test_C90_the_longest_length_is_a_hint_that_is_never_trusted(rng: np.random.Generator, backend: str) -> None:
    q, k, v = normal(rng, 40, 1, 8), normal(rng, 40, 1, 8), normal(rng, 40, 1, 8)
    expected = tandem.attention_varlen(q, k, v, [0, 3, 40], [0, 3, 40], backend=backend)
    ours = tandem.attention_varlen(q, k, v, [0, 3, 40], [0, 3, 40], max_seqlen_q=1, max_seqlen_k=2, backend=backend)
    np.testing.assert_array_equal(ours, expected)


def test_C92_mixed_dtypes_name_the_argument(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng, 1, 4, 1, 8)
    with pytest.raises(tandem.InvalidArgumentError, match=r"(?s)^k.*fp32"):
        tandem.attention(q, k.astype(np.float16), v)
    with pytest.raises(tandem.InvalidArgumentError, match="q has dtype int64; allowed: float64, float32"):
        tandem.attention(np.ones((1, 4, 1, 8), np.int64), k, v)
    with pytest.raises(tandem.InvalidArgumentError, match="sink has dtype float16"):
        tandem.attention(q, k, v, sink=np.zeros(1, np.float16))
