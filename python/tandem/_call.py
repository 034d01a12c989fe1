"""From the arguments of a public function to one call of _core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from tandem import _core
from tandem._arrays import (
    FLOATS,
    LSE_DTYPES,
    Operand,
    allocate,
    allocate_workspace,
    dtype_number,
    integers,
    operand,
)
from tandem._options import read_options
from tandem.errors import InvalidArgumentError

DENSE_AXES = ("batch", "seqlen", "nheads", "headdim")
PACKED_AXES = ("total rows", "nheads", "headdim")

_CONTIGUOUS = ("q", "k", "v", "out", "dout")  # the library reads their last axis as one run of memory [10]
_STATISTICS = ("sink", "dlse")  # these and _INTEGERS may be None
_SCALES = ("q_scale", "k_scale", "v_scale")  # these too
_INTEGERS = ("lo", "hi", "seqused_q", "seqused_k", "cu_seqlens_q", "cu_seqlens_k")

Result = npt.NDArray[Any]  # of a GPU producer it is that library's array

_OPERATIONS: dict[str, tuple[Callable[..., None], Callable[..., tuple[int, int]]]] = {
    "forward": (_core.forward, _core.forward_workspace),
    "backward": (_core.backward, _core.backward_workspace),
    "merge": (_core.merge, _core.merge_workspace),
    "quantize_fp8": (_core.quantize_fp8, _core.quantize_fp8_workspace),
}


@dataclass(frozen=True)
class Call:
    """Inputs by their name in _core, all on one device, and options by their name in _core."""

    operands: dict[str, Operand]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        (first_name, first), *others = self.operands.items()
        for name, other in others:
            if other.device != first.device:
                raise InvalidArgumentError(
                    f"{name} is on {_device_name(other)} but {first_name} is on {_device_name(first)}; "
                    "all arrays must be on one device"
                )


def read_call(axes: tuple[str, ...], **given: object) -> Call:
    """Sorts the arguments of a public function into inputs and options."""
    operands: dict[str, Operand] = {}
    options: dict[str, object] = {}
    for name, value in given.items():
        if name in _CONTIGUOUS:
            operands[name] = operand(name, value, FLOATS, contiguous=True)
        elif name == "lse":
            operands[name] = operand(name, value, LSE_DTYPES)
        elif name not in _STATISTICS + _SCALES + _INTEGERS:
            options[name] = value
        elif value is not None and name in _SCALES:
            operands[name] = operand(name, value, ("float32",))
        elif value is not None:
            operands[name] = operand(name, value, LSE_DTYPES) if name in _STATISTICS else integers(name, value)
    for name in ("q", "k", "v"):
        shape = operands[name].shape
        if len(shape) != len(axes):
            raise InvalidArgumentError(f"{name} has shape {shape}; it needs {len(axes)} axes ({', '.join(axes)})")
    return Call(operands, read_options(**options))


def forward(call: Call, return_lse: bool, out: object, out_dtype: object) -> Result | tuple[Result, Result]:
    """Runs the forward: out, or (out, lse)."""
    q, v = call.operands["q"], call.operands["v"]
    shape = (*q.shape[:-1], v.shape[-2 if call.options.get("v_transposed") else -1])
    returned: Any = out
    if out is None:
        default = _core.BF16 if q.dtype in (_core.E4M3, _core.E5M2) else q.dtype
        result = allocate(shape, default if out_dtype is None else dtype_number("out_dtype", out_dtype), q)
        returned = result.owner
    elif out_dtype is None:
        result = operand("out", out, FLOATS, contiguous=True, writable=True)
    else:
        raise InvalidArgumentError("out_dtype is given with out, which has a dtype of its own")
    outputs = {"out": result}
    if return_lse:
        outputs["lse"] = allocate(_lse_shape(q), _core.FP64 if q.dtype == _core.FP64 else _core.FP32, q)
    _run("forward", call, outputs)
    return (returned, outputs["lse"].owner) if return_lse else returned


def backward(call: Call) -> tuple[Result, ...]:
    """Runs the backward: the gradients of q, k, v and, if it is given, of sink."""
    sources = [name for name in ("q", "k", "v", "sink") if name in call.operands]
    q = call.operands["q"]
    gradients = {f"d{name}": allocate(call.operands[name].shape, call.operands[name].dtype, q) for name in sources}
    _run("backward", call, gradients)
    return tuple(gradient.owner for gradient in gradients.values())


def merge_partials(call: Call, out_dtype: object) -> tuple[Result, Result]:
    """Runs the merge: (out, lse)."""
    out_partial, lse_partial = call.operands["out_partial"], call.operands["lse_partial"]
    dtype = out_partial.dtype if out_dtype is None else dtype_number("out_dtype", out_dtype)
    out = allocate(out_partial.shape[1:], dtype, out_partial)
    lse = allocate(lse_partial.shape[1:], lse_partial.dtype, out_partial)
    _run("merge", call, {"out": out, "lse": lse})
    return out.owner, lse.owner


def quantize(call: Call, out_shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> tuple[Result, Result]:
    """Runs the quantiser: (out, scale)."""
    x = call.operands["x"]
    out = allocate(out_shape, _core.E4M3, x)
    scale = allocate(scale_shape, _core.FP32, x)
    _run("quantize_fp8", call, {"out": out, "scale": scale})
    return out.owner, scale.owner


def _run(operation: str, call: Call, outputs: dict[str, Operand]) -> None:
    run, workspace = _OPERATIONS[operation]
    tensors = {name: each.tensor for name, each in {**call.operands, **outputs}.items()}
    first = next(iter(call.operands.values()))
    arguments: dict[str, Any] = {**tensors, **call.options, "device": first.device}
    if first.device[0] == _core.CPU:  # _core finds the scratch memory itself
        run(**arguments)
        return
    nbytes, alignment = workspace(**arguments)
    owner, address = allocate_workspace(nbytes, alignment, first)
    run(**arguments, workspace=address, workspace_bytes=nbytes)
    del owner  # HAZARD: not before the launch; afterwards the producer's allocator keeps the stream's order


def _lse_shape(q: Operand) -> tuple[int, ...]:
    *batch, rows, heads, _ = q.shape
    return (*batch, heads, rows)


def _device_name(value: Operand) -> str:
    kind, ordinal = value.device
    return "the CPU" if kind == _core.CPU else f"CUDA device {ordinal}"
