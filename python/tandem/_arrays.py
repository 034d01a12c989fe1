"""Arrays in and out: what the library reads of a NumPy array or of anything that speaks DLPack."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tandem import _core
from tandem.errors import InvalidArgumentError, UnsupportedError

DTYPE_NUMBERS: dict[str, int] = {
    "float64": _core.FP64,
    "float32": _core.FP32,
    "float16": _core.FP16,
    "bfloat16": _core.BF16,
    "float8_e4m3fn": _core.E4M3,
    "float8_e5m2": _core.E5M2,
    "int32": _core.INT32,
}
DTYPE_NAMES = {number: name for name, number in DTYPE_NUMBERS.items()}
FLOATS = tuple(name for name in DTYPE_NUMBERS if name != "int32")
LSE_DTYPES = ("float32", "float64")

_ITEMSIZES = dict(zip(DTYPE_NAMES, (8, 4, 2, 2, 1, 1, 4), strict=True))

# NumPy types of the same size, for memory of types that NumPy lacks.
_STORAGE = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}

_DLPACK_CPU = (1, 3)  # kDLCPU; kDLCUDAHost: pinned memory, which the CPU reads like any other
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_DEFAULT_STREAM = 1  # DLPack's number of CUDA's legacy default stream, on which Tandem runs what is not torch's

# What a Hopper kernel reads in place: bases and strides are multiples of this, strides neither 0 nor too long [10].
_TMA_ALIGNMENT_BYTES = 16
_TMA_MAX_STRIDE_BYTES = 1 << 40


@runtime_checkable
class Array(Protocol):
    """What Tandem takes as an array: NumPy's, or any object that exports itself through DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class Operand:
    """One array of a call. `owner` keeps the memory alive; on the CPU it is a NumPy array over that memory."""

    owner: Any
    device: tuple[int, int]
    tensor: _core.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> int:
        return self.tensor.dtype


def operand(
    name: str, value: object, allowed: tuple[str, ...], *, contiguous: bool = False, writable: bool = False
) -> Operand:
    """Views `value` without a copy where the library can read it in place, and copies it where it cannot.

    Args:
        name: of the argument, for error messages.
        allowed: names of the dtypes it may have.
        contiguous: the library needs a contiguous last axis.
        writable: the library writes to it, so that a copy would be lost: refused instead.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored; pass its data and seqused, lo or hi")
    if isinstance(value, np.ndarray):
        found = _dtype_name(value.dtype)
        _require_dtype(name, found, allowed)
        return _host_operand(name, value, DTYPE_NUMBERS[found], contiguous, writable)
    if isinstance(value, Array):
        return _dlpack_operand(name, value, allowed, contiguous, writable)
    raise TypeError(f"{name} must be a NumPy array or an object with __dlpack__, not {type(value).__name__}")


def gpu_reads_in_place(address: int, itemsize: int, shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the GPU's copy engine can address such a tensor, whose last axis has the stride 1."""
    if address % _TMA_ALIGNMENT_BYTES != 0:
        return False
    steps = [step * itemsize for step, size in zip(stride[:-1], shape[:-1], strict=True) if size != 1]
    return all(step % _TMA_ALIGNMENT_BYTES == 0 and 0 < step < _TMA_MAX_STRIDE_BYTES for step in steps)


def integers(name: str, value: object) -> Operand:
    """An int32 array; a list or tuple of ints is converted."""
    if isinstance(value, (list, tuple)):
        value = _int32_array(name, value)
    return operand(name, value, ("int32",))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy type of this name; the types that NumPy lacks come from ml_dtypes."""
    if name not in _STORAGE:
        return np.dtype(name)
    try:
        ml_dtypes = importlib.import_module("ml_dtypes")
    except ImportError:
        raise UnsupportedError(
            f"NumPy has no {name}: install ml_dtypes, or pass out_dtype or out for a result of another kind"
        ) from None
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def dtype_number(name: str, value: object) -> int:
    """Number of the dtype that `value` (a NumPy dtype, a scalar type or a name) stands for."""
    if isinstance(value, str) and value in DTYPE_NUMBERS:
        found = value
    else:
        try:
            found = np.dtype(value).name  # type: ignore[call-overload]
        except TypeError:
            raise TypeError(f"{name} must be a dtype or its name, not {value!r}") from None
    _require_dtype(name, found, FLOATS)
    return DTYPE_NUMBERS[found]


def allocate(shape: tuple[int, ...], dtype: int, like: Operand) -> Operand:
    """A new, uninitialised array on the device of `like`: NumPy's on the CPU, elsewhere of the library that made it."""
    name = DTYPE_NAMES[dtype]
    if like.device[0] == _core.CPU:
        return _host_operand("out", np.empty(shape, numpy_dtype(name)), dtype, False, True)
    namespace = _namespace(like)
    if not hasattr(namespace, name):
        raise UnsupportedError(f"{namespace.__name__} has no {name}; pass out, or out_dtype for another type")
    result = operand("out", namespace.empty(shape, dtype=getattr(namespace, name)), (name,), writable=True)
    if result.device != like.device:
        raise InvalidArgumentError(
            f"{namespace.__name__} makes arrays on CUDA device {result.device[1]}, but the inputs are on "
            f"{like.device[1]}; make that one its current device, or pass out"
        )
    return result


def allocate_workspace(nbytes: int, alignment: int, like: Operand) -> tuple[Any, int]:
    """(owner, address) of scratch memory on the device of `like`, which is not the CPU."""
    namespace = _namespace(like)
    owner = namespace.empty((nbytes + alignment,), dtype=namespace.uint8)
    address = _core.View(_capsule(owner, on_gpu=True), True).data
    return owner, -(-address // alignment) * alignment


def partials(name: str, values: object, allowed: tuple[str, ...]) -> Operand:
    """Partial results with their parts along the first axis; those of a list are copied into one array."""
    if not isinstance(values, (list, tuple)):
        return operand(name, values, allowed, contiguous=allowed is FLOATS)
    if not values:
        raise InvalidArgumentError(f"{name} is empty; at least one partial result is needed")
    parts = [operand(f"{name}[{index}]", value, allowed) for index, value in enumerate(values)]
    for index, part in enumerate(parts):
        if part.device[0] != _core.CPU:
            raise UnsupportedError(f"{name} is a list of arrays on a GPU; stack them into one array")
        if (part.shape, part.dtype) != (parts[0].shape, parts[0].dtype):
            raise InvalidArgumentError(
                f"{name}[{index}] is {_describe(part)} but {name}[0] is {_describe(parts[0])}; all must be alike"
            )
    return _host_operand(name, np.stack([part.owner for part in parts]), parts[0].dtype, False, False)


@functools.cache  # dtype.name is computed anew on every access, in Python
def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def _describe(value: Operand) -> str:
    return f"{DTYPE_NAMES[value.dtype]} {value.shape}"


def _array_module(value: Any) -> Any:
    """The module that makes arrays like this one, or None: of the array API standard, or CuPy before it had that."""
    if hasattr(value, "__array_namespace__"):
        return value.__array_namespace__()
    module = type(value).__module__.partition(".")[0]
    return sys.modules.get(module) if module == "cupy" else None


def _namespace(like: Operand) -> Any:
    module = _array_module(like.owner)
    if module is None:
        raise UnsupportedError(
            "results on a GPU need inputs of CuPy, or with __array_namespace__; tensors of PyTorch go to tandem.torch"
        )
    return module


def _require_dtype(name: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise InvalidArgumentError(f"{name} has dtype {found}; allowed: {', '.join(allowed)}")


def _int32_array(name: str, values: list[Any] | tuple[Any, ...]) -> npt.NDArray[np.int32]:
    if any(isinstance(each, bool) or not isinstance(each, (int, np.integer)) for each in values):
        raise TypeError(f"{name} must hold ints only")
    if any(not -(2**31) <= each < 2**31 for each in values):
        raise InvalidArgumentError(f"{name} holds a number that does not fit into int32")
    return np.array(values, dtype=np.int32)


def _host_operand(name: str, array: npt.NDArray[Any], dtype: int, contiguous: bool, writable: bool) -> Operand:
    if not _readable(array, contiguous):
        if writable:
            raise InvalidArgumentError(f"{name} must be aligned, in native byte order and contiguous in its last axis")
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    if writable and not array.flags.writeable:
        raise InvalidArgumentError(f"{name} is read-only")
    # Strides of axes of size 1 mean nothing, and NumPy leaves odd ones there.
    stride = [0 if size == 1 else step // array.itemsize for size, step in zip(array.shape, array.strides, strict=True)]
    return Operand(array, (_core.CPU, 0), _core.Tensor(array.ctypes.data, dtype, array.shape, stride))


def _readable(array: npt.NDArray[Any], contiguous: bool) -> bool:
    steps = [step for size, step in zip(array.shape, array.strides, strict=True) if size > 1]
    if not array.dtype.isnative or array.ctypes.data % array.itemsize != 0:
        return False
    if any(step < 0 or step % array.itemsize != 0 for step in steps):
        return False
    return not contiguous or array.ndim == 0 or array.shape[-1] == 1 or array.strides[-1] == array.itemsize


def _dlpack_operand(name: str, value: Array, allowed: tuple[str, ...], contiguous: bool, writable: bool) -> Operand:
    kind, ordinal = value.__dlpack_device__()
    if int(kind) not in _DLPACK_CPU + _DLPACK_CUDA:
        raise UnsupportedError(f"{name} lives on a device of DLPack type {int(kind)}; allowed: CPU and CUDA")
    on_gpu = int(kind) in _DLPACK_CUDA
    if on_gpu:
        # Says why a GPU cannot serve before anything is exported or allocated there.
        _core.backend_select(_core.BACKEND_AUTO, (_core.CUDA, ordinal))
    try:
        view = _core.View(_capsule(value, on_gpu), writable)
    except TypeError as error:
        raise InvalidArgumentError(f"{name}: {error}") from None
    _require_dtype(name, DTYPE_NAMES.get(view.dtype) or str(getattr(value, "dtype", "unknown to Tandem")), allowed)
    if int(kind) in _DLPACK_CPU:
        return _host_operand(name, _array_over(view), view.dtype, contiguous, writable)
    itemsize = _ITEMSIZES[view.dtype]
    last_axis = len(view.shape) == 0 or view.shape[-1] == 1 or view.stride[-1] == 1
    in_place = last_axis and gpu_reads_in_place(view.data, itemsize, view.shape, view.stride)
    if contiguous and not writable and not in_place and _array_module(value) is not None:
        return _dlpack_operand(name, _contiguous_copy(value), allowed, False, False)
    return Operand(value, (_core.CUDA, ordinal), _core.Tensor(view.data, view.dtype, view.shape, view.stride))


def _contiguous_copy(value: Any) -> Any:
    copy = _array_module(value).empty(value.shape, dtype=value.dtype)
    copy[...] = value
    return copy


def _capsule(value: Any, on_gpu: bool) -> Any:
    stream = {"stream": _DEFAULT_STREAM} if on_gpu else {}
    try:
        return value.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # a producer older than DLPack 1.0
        return value.__dlpack__(**stream)


@dataclass(frozen=True)
class _Interface:
    """Hands the memory of a View to NumPy, which keeps this object alive."""

    view: _core.View
    __array_interface__: dict[str, Any]


def _array_over(view: _core.View) -> npt.NDArray[Any]:
    name = DTYPE_NAMES[view.dtype]
    dtype = np.dtype(_STORAGE.get(name, name))
    if 0 in view.shape:  # NumPy would follow the address, which may be null
        return np.empty(view.shape, dtype)
    interface = {
        "version": 3,
        "data": (view.data, False),
        "typestr": dtype.str,
        "shape": view.shape,
        "strides": tuple(step * dtype.itemsize for step in view.stride),
    }
    return np.asarray(_Interface(view, interface))
