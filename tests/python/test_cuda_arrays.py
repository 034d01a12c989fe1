"""Arrays of CuPy through DLPack on a Hopper GPU, against attention in float64 NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")

from numpy_reference import Array, Problem, assert_close, assert_lse_close, solve  # noqa: E402

import tandem  # noqa: E402

pytestmark = pytest.mark.cuda

Tensors = dict[str, Array]


@pytest.fixture
def tensors(rng: np.random.Generator) -> Tensors:
    shapes = {"q": (2, 90, 4, 64), "k": (2, 130, 2, 64), "v": (2, 130, 2, 128)}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def on_gpu(tensors: Tensors) -> dict[str, Any]:
    return {name: cupy.asarray(values) for name, values in tensors.items()}


def assert_right(got: tuple[Any, Any], tensors: Tensors, **options: Any) -> None:
    problem = Problem(**tensors, options=options)
    exact, plain = solve(problem), solve(problem, dtype=np.float16)
    assert isinstance(got[0], cupy.ndarray)
    assert_close("out", got[0].get(), exact.out, plain.out, np.float16)
    assert_lse_close(got[1].get(), exact.lse)


def test_dense(tensors: Tensors, rng: np.random.Generator) -> None:
    got = tandem.attention(**on_gpu(tensors), causal=True, return_lse=True)
    assert_right(got, tensors, causal=True)
    used = np.array([130, 41], np.int32)
    got = tandem.attention(**on_gpu(tensors), window=(9, 3), seqused_k=cupy.asarray(used), return_lse=True)
    assert_right(got, tensors, window=(9, 3), seqused_k=used)


@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients(tensors: Tensors, rng: np.random.Generator, deterministic: bool) -> None:
    arrays, dout = on_gpu(tensors), rng.standard_normal((2, 90, 4, 128)).astype(np.float16)
    out, lse = tandem.attention(**arrays, causal=True, return_lse=True)
    gradients = tandem.attention_backward(
        cupy.asarray(dout), **arrays, out=out, lse=lse, causal=True, deterministic=deterministic
    )
    problem = Problem(**tensors, options={"causal": True})
    exact, plain = solve(problem, dout), solve(problem, dout, dtype=np.float16)
    for name, got in zip(("dq", "dk", "dv"), gradients, strict=True):
        assert isinstance(got, cupy.ndarray)
        assert_close(name, got.get(), getattr(exact, name), getattr(plain, name), np.float16)


def test_packed(rng: np.random.Generator) -> None:
    tensors = {name: rng.standard_normal((200, 2, 64)).astype(np.float16) for name in "qkv"}
    tensors |= {f"cu_seqlens_{x}": np.array([0, 70, 70, 180], np.int32) for x in "qk"}
    got = tandem.attention_varlen(**on_gpu(tensors), causal=True, return_lse=True)
    assert_right(got, tensors, causal=True)


def test_out_is_written_in_place(tensors: Tensors) -> None:
    arrays = on_gpu(tensors)
    out = cupy.full((2, 90, 4, 128), cupy.nan, cupy.float16)
    assert tandem.attention(**arrays, out=out) is out
    cupy.testing.assert_array_equal(out, tandem.attention(**arrays))


def test_what_the_copy_engine_cannot_address_is_copied(tensors: Tensors) -> None:
    arrays = on_gpu(tensors)
    right = tandem.attention(**arrays)
    wide = cupy.zeros((2, 90, 4, 65), cupy.float16)
    wide[..., 1:] = arrays["q"]
    transposed = cupy.ascontiguousarray(arrays["k"].swapaxes(2, 3)).swapaxes(2, 3)
    cupy.testing.assert_array_equal(tandem.attention(wide[..., 1:], transposed, arrays["v"]), right)


def test_inputs_of_a_side_stream(tensors: Tensors) -> None:
    """The inputs are written on a stream of CuPy's, and read after that."""
    arrays = on_gpu(tensors)
    right = tandem.attention(2 * arrays["q"], arrays["k"], arrays["v"])
    ballast = cupy.zeros((4096, 4096), cupy.float32)
    with cupy.cuda.Stream() as stream:
        for _ in range(20):
            ballast = ballast @ ballast
        q = 2 * arrays["q"]
        out = tandem.attention(q, arrays["k"], arrays["v"])
        cupy.cuda.Stream.null.synchronize()
        stream.synchronize()
    cupy.testing.assert_array_equal(out, right)


def test_merge(tensors: Tensors) -> None:
    arrays = on_gpu(tensors)
    halves = [slice(0, 60), slice(60, 130)]
    parts = [tandem.attention(arrays["q"], arrays["k"][:, s], arrays["v"][:, s], return_lse=True) for s in halves]
    stacked = [cupy.stack(each) for each in zip(*parts, strict=True)]
    out, lse = tandem.merge(*stacked)
    exact = solve(Problem(**tensors))
    assert_lse_close(lse.get(), exact.lse)
    np.testing.assert_allclose(out.get(), exact.out, rtol=0, atol=3 * 2**-11 * np.abs(exact.out).max())


def test_refusals_in_words(tensors: Tensors) -> None:
    arrays = on_gpu(tensors)
    with pytest.raises(tandem.InvalidArgumentError, match="k is on the CPU but q is on CUDA device 0"):
        tandem.attention(arrays["q"], tensors["k"], arrays["v"])
    with pytest.raises(tandem.UnsupportedError, match="fp32"):
        tandem.attention(*(arrays[name].astype(cupy.float32) for name in "qkv"))
    with pytest.raises(tandem.UnsupportedError, match="headdim is 63"):
        tandem.attention(arrays["q"][..., :63], arrays["k"][..., :63], arrays["v"])


def test_tensors_of_torch_are_sent_to_its_own_module(tensors: Tensors) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(tensors[name]).cuda() for name in "qkv")
    with pytest.raises(tandem.UnsupportedError, match=r"__array_namespace__.*tandem\.torch"):
        tandem.attention(q, k, v)
