"""What counts as an array, what is read in place, what is copied, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy_reference import Array, Problem, assert_close, solve

import tandem
from tandem import _arrays, _call, _core
from tandem._arrays import FLOATS, operand

Arrays = tuple[Array, Array, Array]


def qkv(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Arrays:
    q, k, v = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    return q, k, v


def results(arrays: Arrays, backend: str) -> list[Array]:
    """out, lse and the three gradients."""
    out, lse = tandem.attention(*arrays, causal=True, return_lse=True, backend=backend)
    dout = np.ones_like(out)
    gradients = tandem.attention_backward(dout, *arrays, out, lse, causal=True, deterministic=True, backend=backend)
    return [out, lse, *gradients]


def assert_same_as_contiguous(arrays: Arrays, backend: str) -> None:
    q, k, v = (np.array(x, order="C") for x in arrays)
    for ours, expected in zip(results(arrays, backend), results((q, k, v), backend), strict=True):
        assert ours.tobytes() == expected.tobytes()


def inside(x: Array, width: int, offset_bytes: int) -> Array:
    """A copy of x whose rows lie `width` elements apart, `offset_bytes` off an aligned address."""
    rows = x.size // x.shape[-1]
    buffer = np.zeros(rows * width * x.itemsize + offset_bytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64 + offset_bytes
    wide = buffer[start : start + rows * width * x.itemsize].view(x.dtype)
    view = wide.reshape(*x.shape[:-1], width)[..., : x.shape[-1]]
    view[...] = x
    return view


# ----------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_C48_slices_of_one_array(rng: np.random.Generator, backend: str, headdim: int, dtype: Any) -> None:
    together = rng.standard_normal((2, 9, 3, 4, headdim)).astype(dtype)
    q, k, v = together[:, :, 0], together[:, :, 1], together[:, :, 2]
    for x in (q, k, v):
        assert operand("x", x, FLOATS, contiguous=True).owner is x
    assert_same_as_contiguous((q, k, v), backend)


@pytest.mark.parametrize("stride", [0, 2, 2**40])
def test_C49_strides_of_an_axis_of_size_1_mean_nothing(rng: np.random.Generator, backend: str, stride: int) -> None:
    def odd(x: Array) -> Array:
        return np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:2], stride * x.itemsize, x.itemsize))

    q, k, v = (odd(x) for x in qkv(rng, 2, 5, 1, 8))
    assert_same_as_contiguous((q, k, v), backend)


@pytest.mark.parametrize("offset_bytes", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_C50_bases_and_rows_off_the_grid(rng: np.random.Generator, backend: str, dtype: Any, offset_bytes: int) -> None:
    q, k, v = (inside(x, 65, offset_bytes) for x in qkv(rng, 1, 6, 2, 64, dtype=dtype))
    assert_same_as_contiguous((q, k, v), backend)


def test_C51_transposed_buffers(rng: np.random.Generator, backend: str) -> None:
    q, k, v = (x.transpose(0, 2, 1, 3) for x in qkv(rng, 1, 4, 62, 128, dtype=ml_dtypes.bfloat16))
    assert_same_as_contiguous((q, k, v), backend)
    assert_same_as_contiguous((q.copy(), k.copy(), v), backend)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_C53_last_axis_not_contiguous(rng: np.random.Generator, backend: str, which: int) -> None:
    arrays = list(qkv(rng, 2, 5, 2, 8))
    arrays[which] = np.repeat(arrays[which], 2, axis=-1)[..., ::2]
    assert arrays[which].strides[-1] == 8
    assert_same_as_contiguous((arrays[0], arrays[1], arrays[2]), backend)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "reversed": lambda x: x[:, ::-1],
    "reversed last axis": lambda x: x[..., ::-1],
    "broadcast batch": lambda x: np.broadcast_to(x[:1], x.shape),
    "broadcast heads": lambda x: np.broadcast_to(x[:, :, :1], x.shape),
    "broadcast last axis": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "every second row": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "Fortran order": np.asfortranarray,
    "foreign byte order": lambda x: x.astype(x.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(rng: np.random.Generator, backend: str, layout: str) -> None:
    q, k, v = (LAYOUTS[layout](x) for x in qkv(rng, 2, 5, 2, 8))
    exact = solve(Problem(q, k, v, {"causal": True}))
    plain = solve(Problem(q, k, v, {"causal": True}), dtype=np.float32)
    out = tandem.attention(q, k, v, causal=True, backend=backend)
    assert_close("out", out, exact.out, plain.out, np.float32)


def test_zero_strides_are_read_in_place() -> None:
    x = np.broadcast_to(np.ones((1, 1, 1, 8), np.float32), (3, 5, 2, 8))
    seen = operand("x", x, FLOATS, contiguous=True)
    assert seen.owner is x
    assert seen.tensor.stride == (0, 0, 0, 1)


def test_C46_transposed_dout(rng: np.random.Generator, backend: str) -> None:
    q, k, v = qkv(rng, 2, 6, 4, 8)
    out, lse = tandem.attention(q, k, v, return_lse=True, backend=backend)
    dout = rng.standard_normal((2, 4, 6, 8)).astype(np.float32).transpose(0, 2, 1, 3)
    ours = tandem.attention_backward(dout, q, k, v, out, lse, backend=backend)
    expected = tandem.attention_backward(dout.copy(), q, k, v, out, lse, backend=backend)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_read_only_inputs(rng: np.random.Generator, backend: str) -> None:
    q, k, v = qkv(rng, 1, 5, 2, 8)
    for x in (q, k, v):
        x.flags.writeable = False
    before = q.tobytes() + k.tobytes() + v.tobytes()
    results((q, k, v), backend)
    assert before == q.tobytes() + k.tobytes() + v.tobytes()


# ------------------------------------------------------------------------------------------------------------ outputs


def test_out_with_strides(rng: np.random.Generator, backend: str) -> None:
    q, k, v = qkv(rng, 2, 5, 2, 8)
    room = np.full((2, 2, 7, 12), np.nan, np.float32)
    out = room[:, :, 1:6, 2:10].transpose(0, 2, 1, 3)
    assert tandem.attention(q, k, v, out=out, backend=backend) is out
    np.testing.assert_array_equal(out, tandem.attention(q, k, v, backend=backend))
    out[...] = np.nan
    assert np.isnan(room).all()  # nothing beside it was written


def read_only(x: Array) -> Array:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (read_only(np.zeros((1, 4, 1, 8), np.float32)), "out is read-only"),
        (np.zeros((1, 4, 1, 16), np.float32)[..., ::2], "out must be aligned, .* contiguous in its last axis"),
        (np.zeros((1, 4, 1, 7), np.float32), "out"),
        (np.zeros((1, 4, 1, 8), np.int32), "out has dtype int32"),
        (np.zeros((1, 4, 1, 8), np.float16), "out"),
    ],
    ids=["read-only", "strided", "wrong shape", "int32", "float16"],
)
def test_unfit_out(rng: np.random.Generator, out: Array, error: str) -> None:
    with pytest.raises(tandem.InvalidArgumentError, match=error):
        tandem.attention(*qkv(rng, 1, 4, 1, 8), out=out)


def test_out_and_out_dtype_contradict(rng: np.random.Generator) -> None:
    q, k, v = qkv(rng, 1, 4, 1, 8)
    with pytest.raises(tandem.InvalidArgumentError, match="out_dtype is given with out"):
        tandem.attention(q, k, v, out=np.empty_like(q), out_dtype="float32")


# ------------------------------------------------------------------------------------------------------------- DLPack


class Exporter:
    """A producer that offers DLPack, as it was before version 1.0, and nothing else."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0)) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class ModernExporter(Exporter):
    """One that knows of versions, and so can say that its memory is read-only."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        return self._array.__dlpack__(max_version=max_version)


@pytest.mark.parametrize("exporter", [Exporter, ModernExporter])
def test_dlpack_producers(rng: np.random.Generator, backend: str, exporter: type[Exporter]) -> None:
    arrays = [x.transpose(0, 2, 1, 3) for x in qkv(rng, 2, 3, 5, 8)]
    q, k, v = (exporter(x) for x in arrays)
    sink = np.zeros(3, np.float32)
    lengths = np.array([5, 2], np.int32)
    ours = tandem.attention(q, k, v, sink=exporter(sink), seqused_k=exporter(lengths), backend=backend)
    assert isinstance(ours, np.ndarray)
    expected = tandem.attention(*arrays, sink=sink, seqused_k=lengths, backend=backend)
    np.testing.assert_array_equal(ours, expected)


def test_dlpack_out(rng: np.random.Generator, backend: str) -> None:
    q, k, v = qkv(rng, 1, 5, 2, 8)
    room = np.full_like(q, np.nan)
    out = Exporter(room)
    assert tandem.attention(q, k, v, out=out, backend=backend) is out
    np.testing.assert_array_equal(room, tandem.attention(q, k, v, backend=backend))
    with pytest.raises(tandem.InvalidArgumentError, match="out: the array is read-only"):
        tandem.attention(q, k, v, out=ModernExporter(read_only(room)))


def test_dlpack_of_no_elements(backend: str) -> None:
    empty = Exporter(np.empty((0, 3, 2, 8), np.float32))
    assert tandem.attention(empty, empty, empty, backend=backend).shape == (0, 3, 2, 8)


def test_dlpack_types_that_numpy_lacks(rng: np.random.Generator, backend: str) -> None:
    torch = pytest.importorskip("torch")
    arrays = [x.transpose(0, 2, 1, 3) for x in qkv(rng, 1, 2, 5, 8, dtype=ml_dtypes.bfloat16)]
    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in arrays]
    ours = tandem.attention(*tensors, backend=backend)
    assert ours.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(ours, tandem.attention(*arrays, backend=backend))
    with pytest.raises(tandem.InvalidArgumentError, match=r"seqused_k has dtype torch\.int64; allowed: int32"):
        tandem.attention(*tensors, seqused_k=torch.ones(1, dtype=torch.int64))


def test_C93_arrays_on_a_gpu_are_refused_in_words_without_one() -> None:
    x = Exporter(np.zeros((1, 2, 1, 8), np.float32), device=(2, 0))
    available, reason = _core.backend_available(_core.BACKEND_SM90, (_core.CUDA, 0))
    if available:
        pytest.skip("a GPU is here; this is about machines without one")
    without_cuda = "is not part of this library" in reason
    with pytest.raises(tandem.TandemError) as caught:
        tandem.attention(x, x, x)
    # A call that names no backend is told what it lacks: the build, or else what the backend says of the machine.
    assert "built without a backend for it" in str(caught.value) if without_cuda else str(caught.value) == reason


class FakeGpuArray(Exporter):
    """Host memory that claims to lie on CUDA device 3, with a namespace that makes more of the kind."""

    def __init__(self, array: Array) -> None:
        super().__init__(array, device=(2, 3))
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, *, stream: int) -> Any:
        assert stream == 1  # the default stream, on which the library will read
        return self._array.__dlpack__()

    def __setitem__(self, where: Any, values: FakeGpuArray) -> None:
        self._array[where] = values._array

    def __array_namespace__(self) -> Any:
        return FakeGpuNamespace


class FakeGpuNamespace:
    float32, uint8 = np.float32, np.uint8

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any) -> FakeGpuArray:
        return FakeGpuArray(np.empty(shape, dtype))


def test_a_gpu_call_stays_on_the_gpu_of_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reaches _core: the device, results and scratch memory made by the inputs' own library."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(_arrays._core, "backend_select", lambda requested, device: _core.BACKEND_SM90)
    monkeypatch.setitem(_call._OPERATIONS, "forward", (seen.update, lambda **arguments: (1000, 256)))
    x = FakeGpuArray(np.zeros((1, 2, 1, 8), np.float32))
    out, lse = tandem.attention(x, x, x, return_lse=True)
    assert isinstance(out, FakeGpuArray)
    assert isinstance(lse, FakeGpuArray)
    assert seen["device"] == (_core.CUDA, 3)
    assert seen["q"].data == x._array.ctypes.data
    assert (seen["out"].data, seen["out"].shape) == (out._array.ctypes.data, (1, 2, 1, 8))
    assert (seen["lse"].data, seen["lse"].shape) == (lse._array.ctypes.data, (1, 1, 2))
    assert seen["workspace"] % 256 == 0
    assert seen["workspace_bytes"] == 1000

    with pytest.raises(tandem.InvalidArgumentError, match="k is on the CPU but q is on CUDA device 3"):
        tandem.attention(x, np.zeros((1, 2, 1, 8), np.float32), x)


def test_what_a_gpu_cannot_address_is_copied_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(_arrays._core, "backend_select", lambda requested, device: _core.BACKEND_SM90)
    monkeypatch.setitem(_call._OPERATIONS, "forward", (seen.update, lambda **arguments: (0, 1)))
    memory = np.zeros(1024, np.float32)
    memory = memory[-memory.ctypes.data % 16 // 4 :]
    x = FakeGpuArray(memory[:64].reshape(1, 4, 2, 8))
    views = {
        "base": memory[1:65].reshape(1, 4, 2, 8),
        "expanded": np.lib.stride_tricks.as_strided(memory, (1, 4, 2, 8), (0, 0, 0, 4)),
        "last axis": memory[:64].reshape(1, 4, 8, 2).swapaxes(2, 3),
    }
    for name, view in views.items():
        tandem.attention(x, FakeGpuArray(view), x)
        assert seen["q"].data == x._array.ctypes.data
        assert seen["k"].data != view.ctypes.data, name
        assert seen["k"].stride == (64, 16, 8, 1), name


def test_other_devices_are_refused() -> None:
    x = Exporter(np.zeros((1, 2, 1, 8), np.float32), device=(8, 0))  # kDLMetal
    with pytest.raises(tandem.UnsupportedError, match="q lives on a device of DLPack type 8"):
        tandem.attention(x, x, x)


# ------------------------------------------------------------------------------------------------------ wrong arguments

X = np.zeros((1, 4, 1, 8), np.float32)

WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "q is a list": ({"q": [[1.0]]}, TypeError, "q must be a NumPy array or an object with __dlpack__, not list"),
    "k is None": ({"k": None}, TypeError, "k must be a NumPy array or an object with __dlpack__, not NoneType"),
    "v is masked": ({"v": np.ma.masked_array(X)}, TypeError, "v is a masked array"),
    "q has 3 axes": ({"q": X[0]}, ValueError, r"q has shape \(4, 1, 8\); it needs 4 axes \(batch, seqlen, nheads"),
    "k of other batch": ({"k": np.zeros((2, 4, 1, 8), np.float32)}, ValueError, "^k"),
    "causal is an int": ({"causal": 1}, TypeError, "causal must be a bool, not int"),
    "causal is None": ({"causal": None}, TypeError, "causal must be a bool, not NoneType"),
    "window is an int": ({"window": 4}, TypeError, r"window must be a \(left, right\) pair"),
    "window of floats": ({"window": (1.5, 0)}, TypeError, r"window\[0\] must be an int, not float"),
    "window of three": ({"window": (1, 2, 3)}, TypeError, r"window must be a \(left, right\) pair"),
    "window of bools": ({"window": (True, 0)}, TypeError, r"window\[0\] must be an int, not bool"),
    "window too large": ({"window": (2**70, 0)}, ValueError, r"window\[0\] is .* does not fit into 64 bits"),
    "chunk is a float": ({"attention_chunk": 2.0}, TypeError, "attention_chunk must be an int, not float"),
    "chunk is negative": ({"attention_chunk": -2}, ValueError, "attention_chunk"),
    "scale is a string": ({"softmax_scale": "1"}, TypeError, "softmax_scale must be a number, not str"),
    "scale is NaN": ({"softmax_scale": float("nan")}, ValueError, "softmax_scale"),
    "softcap is negative": ({"softcap": -1.0}, ValueError, "softcap"),
    "softcap is None": ({"softcap": None}, TypeError, "softcap must be a number, not NoneType"),
    "alignment": ({"alignment": "top"}, ValueError, "alignment is 'top'; allowed: 'bottom-right', 'top-left'"),
    "backend unknown": (
        {"backend": "fast"},
        ValueError,
        "backend is 'fast'; allowed: 'auto', 'reference', 'tiled', 'sm90'",
    ),
    "backend is an int": ({"backend": 2}, TypeError, "backend must be a string or None, not int"),
    "threads": ({"num_threads": -1}, ValueError, "num_threads is -1; allowed: 0 to"),
    "out_dtype": ({"out_dtype": "float31"}, TypeError, "out_dtype must be a dtype or its name, not 'float31'"),
    "out_dtype int": ({"out_dtype": np.int32}, ValueError, "out_dtype has dtype int32"),
    "lengths are floats": ({"seqused_k": [1.0]}, TypeError, "seqused_k must hold ints only"),
    "lengths too large": ({"seqused_k": [2**40]}, ValueError, "seqused_k holds a number that does not fit into int32"),
    "lengths of other batch": ({"seqused_q": [1, 2]}, ValueError, "seqused_q"),
    "lo of int64": ({"lo": np.zeros((1, 1, 4), np.int64)}, ValueError, "lo has dtype int64; allowed: int32"),
    "hi of other length": ({"hi": np.zeros((1, 1, 5), np.int32)}, ValueError, "hi"),
    "sink of other size": ({"sink": np.zeros(2, np.float32)}, ValueError, "sink"),
    "unknown": ({"alibi_slopes": X}, TypeError, "alibi_slopes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    arguments, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        tandem.attention(**{"q": X, "k": X, "v": X, **arguments})


def test_fp8_is_e4m3_and_its_result_is_not_fp8() -> None:
    x = np.zeros((1, 4, 1, 16), ml_dtypes.float8_e4m3fn)
    assert tandem.attention(x, x, x).dtype == ml_dtypes.bfloat16
    assert tandem.attention(x, x, x, out_dtype="float32", backend="reference").dtype == np.float32
    with pytest.raises(tandem.InvalidArgumentError, match=r"out\.dtype is e4m3"):
        tandem.attention(x, x, x, out_dtype="float8_e4m3fn")
    y = x.astype(ml_dtypes.float8_e5m2)
    with pytest.raises(tandem.UnsupportedError, match="attention takes e4m3 only"):
        tandem.attention(y, y, y)


def test_the_backward_needs_the_forward_s_lse() -> None:
    with pytest.raises(TypeError, match="lse must be a NumPy array"):
        tandem.attention_backward(X, X, X, X, X, None)


def test_forcing_the_gpu_on_host_memory_is_an_error() -> None:
    with pytest.raises(tandem.TandemError) as caught:
        tandem.attention(X, X, X, backend="sm90")
    assert caught.value.status_name.startswith("TANDEM_")
    assert caught.value.code > 0


def test_merge_refuses_parts_that_differ() -> None:
    lse = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(
        ValueError, match=r"outs\[1\] is float32 \(1, 3, 1, 8\) but outs\[0\] is float32 \(1, 4, 1, 8\)"
    ):
        tandem.merge([X, X[:, :3]], [lse, lse])
    with pytest.raises(ValueError, match="outs is empty"):
        tandem.merge([], [])
    with pytest.raises(ValueError, match="lse_partial"):
        tandem.merge([X, X], [lse])


def test_unknown_arguments_of_the_integer_interface_are_refused() -> None:
    tensor = _core.Tensor(0, _core.FP32, (1, 4, 1, 8), (32, 8, 8, 1))
    with pytest.raises(TypeError, match="forward_check: unexpected argument 'dropout'"):
        _core.forward_check(q=tensor, k=tensor, v=tensor, out=tensor, dropout=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="merge_check: unexpected argument 'cu_seqlens_q'"):
        _core.merge_check(out_partial=tensor, lse_partial=tensor, out=tensor, cu_seqlens_q=tensor)  # type: ignore[call-arg]
    _core.forward_check(q=tensor, k=tensor, v=tensor, out=tensor, cu_seqlens_q=None, sink=None, window=None)
    with pytest.raises(TypeError, match="forward_check: missing argument 'out'"):
        _core.forward_check(q=tensor, k=tensor, v=tensor)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="argument 'q' must be a Tensor, not int"):
        _core.forward_check(q=1, k=tensor, v=tensor, out=tensor)  # type: ignore[arg-type]
