"""fp8 from Python: the quantiser, and attention over what it gives, in NumPy and in torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tandem

E4M3 = ml_dtypes.float8_e4m3fn
Array = np.ndarray[Any, Any]


def definition(q: Array, k: Array, v: Array, scale: float | None = None) -> Array:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), v)


def real(out: Array, scale: Array) -> Array:
    """(batch, seqlen, nheads, headdim), times the scale of each row's group."""
    values = out.astype(np.float64)
    if scale.ndim == 1:
        return values * scale
    if scale.ndim == 2:
        return values * scale[:, None, :, None]
    rows = np.repeat(scale, 128, axis=2)[:, :, : out.shape[1]]
    return values * rows.transpose(0, 2, 1)[..., None]


def root_mean_square(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


@pytest.mark.parametrize("granularity", ["tensor", "head", "block"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_values_times_scales_are_near(granularity: Any, dtype: Any, backend: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 200, 3, 40)).astype(dtype)
    x[1, 150:] *= 50
    out, scale = tandem.quantize_fp8(x, granularity=granularity, backend=backend)
    assert out.dtype == E4M3
    assert scale.dtype == np.float32
    assert scale.shape == {"tensor": (1,), "head": (2, 3), "block": (2, 3, 2)}[granularity]
    # Half of the last of 3 bits; under the smallest normal number, half of the smallest of all.
    row_scale = real(np.ones_like(out), scale)
    bound = np.maximum(np.abs(x.astype(np.float64)) * 2**-4, row_scale * 2**-10) * (1 + 1e-5)
    assert np.all(np.abs(real(out, scale) - x.astype(np.float64)) <= bound)


@pytest.mark.parametrize("headdim", [64, 96, 128, 192, 256])
def test_rotation_keeps_the_products(headdim: int, rng: np.random.Generator) -> None:
    q, k = (rng.standard_normal((1, 64, 1, headdim)).astype(np.float32) for _ in range(2))
    rotated = [real(*tandem.quantize_fp8(x, rotate=True, seed=3)) for x in (q, k)]
    products = np.einsum("bihd,bjhd->bhij", *rotated)
    expected = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k.astype(np.float64))
    assert root_mean_square(products - expected) < 0.05 * root_mean_square(expected)
    other = real(*tandem.quantize_fp8(k, rotate=True, seed=4))
    assert root_mean_square(np.einsum("bihd,bjhd->bhij", rotated[0], other) - expected) > root_mean_square(expected)


def test_attention_over_what_the_quantiser_gives(backend: str, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, 300, 2, 64)).astype(ml_dtypes.bfloat16) for _ in range(3))
    (q8, qs), (k8, ks) = (tandem.quantize_fp8(x, rotate=True) for x in (q, k))
    v8, vs = tandem.quantize_fp8(v)
    scales = {"q_scale": qs, "k_scale": ks, "v_scale": vs}
    out = tandem.attention(q8, k8, v8, **scales, out_dtype="float32", backend=backend)
    expected = definition(real(q8, qs), real(k8, ks), real(v8, vs))
    assert root_mean_square(out - expected) < 0.05 * root_mean_square(expected)
    assert root_mean_square(out - definition(q, k, v)) < 0.1 * root_mean_square(expected)
    transposed, vs = tandem.quantize_fp8(v, transposed=True)
    assert transposed.shape == (2, 2, 64, 304)
    scales["v_scale"] = vs
    again = tandem.attention(q8, k8, transposed, **scales, v_transposed=True, out_dtype="float32", backend=backend)
    np.testing.assert_array_equal(again, out)


def test_packed(backend: str, rng: np.random.Generator) -> None:
    lengths, cu = (140, 0, 33), (0, 140, 140, 173)
    q, k, v = (rng.standard_normal((180, 2, 64)).astype(np.float32) for _ in range(3))
    (q8, qs), (k8, ks), (v8, vs) = (tandem.quantize_fp8(x, cu_seqlens=cu, max_seqlen=140) for x in (q, k, v))
    assert qs.shape == (3, 2, 2)
    assert not v8[173:].astype(np.float32).any()
    vt, vts = tandem.quantize_fp8(v, cu_seqlens=cu, transposed=True)
    assert vt.shape == (2, 64, (180 // 16 + 3) * 16)
    assert vts.shape == (3, 2, 2)
    options: dict[str, Any] = {"out_dtype": "float32", "backend": backend, "q_scale": qs, "k_scale": ks}
    out = tandem.attention_varlen(q8, k8, v8, cu, cu, v_scale=vs, **options)
    np.testing.assert_array_equal(
        out, tandem.attention_varlen(q8, k8, vt, cu, cu, v_scale=vts, v_transposed=True, **options)
    )
    for begin, length in zip(cu, lengths, strict=False):
        rows = slice(begin, begin + length)
        if length:
            expected = definition(q[None, rows], k[None, rows], v[None, rows])[0]
            assert root_mean_square(out[rows] - expected) < 0.1 * root_mean_square(expected)
    assert not out[173:].any()


def test_rotary_embedding(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 20, 1, 32)).astype(np.float32)
    angle = np.arange(50)[:, None] * 10000.0 ** -(np.arange(8) / 8)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    tables: dict[str, Any] = {"rotary_cos": cos, "rotary_sin": sin, "rotary_offset": [30]}
    expected = x.astype(np.float64)
    a, b = x[..., :8].astype(np.float64), x[..., 8:16].astype(np.float64)
    c, s = cos[30:50, None], sin[30:50, None]
    expected[..., :8], expected[..., 8:16] = a * c - b * s, b * c + a * s
    got = real(*tandem.quantize_fp8(x, **tables))
    assert np.all(np.abs(got - expected) <= np.maximum(np.abs(expected) / 16, 1e-4) * 1.001)
    with pytest.raises(tandem.InvalidArgumentError, match="rotary_offset is 31 at sequence 0"):
        tandem.quantize_fp8(x, **{**tables, "rotary_offset": [31]}, checked=True)


def test_C79_a_missing_scale_is_1_and_strides_may_be_0(backend: str, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, 9, 2, 16)).astype(E4M3) for _ in range(3))
    ones = np.broadcast_to(np.float32(1), (2, 2))
    plain = tandem.attention(q, k, v, out_dtype="float32", backend=backend)
    scaled = tandem.attention(q, k, v, q_scale=ones, v_scale=2 * ones, out_dtype="float32", backend=backend)
    np.testing.assert_array_equal(2 * plain, scaled)
    with pytest.raises(tandem.InvalidArgumentError, match="k_scale has dtype float64"):
        tandem.attention(q, k, v, k_scale=np.ones(1))
    bf16 = q.astype(ml_dtypes.bfloat16)
    with pytest.raises(tandem.InvalidArgumentError, match=r"k_scale is given but q\.dtype is bf16"):
        tandem.attention(bf16, bf16, bf16, k_scale=ones)


def test_what_cannot_be_is_refused_in_words() -> None:
    x = np.zeros((1, 4, 2, 80), np.float32)
    with pytest.raises(tandem.UnsupportedError, match=r"x\.shape\[3\] is 80; .* pad q and k with zeros"):
        tandem.quantize_fp8(x, rotate=True)
    with pytest.raises(tandem.InvalidArgumentError, match="granularity is 'row'; allowed: 'tensor', 'head', 'block'"):
        tandem.quantize_fp8(x, granularity="row")  # type: ignore[arg-type]
    with pytest.raises(tandem.InvalidArgumentError, match=r"x has shape .* it needs 3 axes"):
        tandem.quantize_fp8(x, cu_seqlens=[0, 4])
    with pytest.raises(tandem.InvalidArgumentError, match="x has dtype float64"):
        tandem.quantize_fp8(x.astype(np.float64))
    with pytest.raises(tandem.InvalidArgumentError, match="seed is -1"):
        tandem.quantize_fp8(x, seed=-1)
    with pytest.raises(tandem.InvalidArgumentError, match="transposed is 1 but rotate is 1"):
        tandem.quantize_fp8(x, rotate=True, transposed=True)


def test_bits_depend_on_the_seed_alone(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 300, 3, 96)).astype(np.float32)
    first = tandem.quantize_fp8(x, rotate=True, seed=7, num_threads=1)
    for threads in (2, 3):
        again = tandem.quantize_fp8(x, rotate=True, seed=7, num_threads=threads)
        assert first[0].tobytes() == again[0].tobytes()
        assert first[1].tobytes() == again[1].tobytes()
    assert tandem.quantize_fp8(x, rotate=True, seed=8)[0].tobytes() != first[0].tobytes()


def test_no_rows() -> None:
    for shape in ((0, 4, 2, 16), (2, 0, 2, 16)):
        out, scale = tandem.quantize_fp8(np.zeros(shape, np.float32))
        assert out.shape == shape
        assert scale.size == 0
