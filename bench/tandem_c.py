"""The C interface of Tandem by ctypes, for torch tensors on any device."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import torch

MAX_NDIM = 6
DTYPE_NUMBERS = {
    torch.float32: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.float8_e4m3fn: 5,
    torch.int32: 7,
}  # of tandem.h
CUDA = 1


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_NDIM),
        ("stride", ctypes.c_int64 * MAX_NDIM),
    ]


class Execution(ctypes.Structure):
    _fields_ = [
        ("device_type", ctypes.c_int32),
        ("device_ordinal", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("backend", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("sm_margin", ctypes.c_int32),
        ("needs_grad", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
        ("checked", ctypes.c_int32),
    ]


class Mask(ctypes.Structure):
    _fields_ = [
        ("causal", ctypes.c_int32),
        ("top_left", ctypes.c_int32),
        ("has_window", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("attention_chunk", ctypes.c_int64),
        ("lo", Tensor),
        ("hi", Tensor),
    ]


def params_type(name: str, tensors: str, hints: str = "", added: str = "") -> type[ctypes.Structure]:
    """A parameter struct of tandem.h: these tensors, then these integers, between exec and mask; what came later."""
    fields = [("struct_size", ctypes.c_uint64), ("exec", Execution)]
    fields += [(tensor, Tensor) for tensor in tensors.split()]
    fields += [(hint, ctypes.c_int64) for hint in hints.split()]
    fields += [
        ("mask", Mask),
        ("softmax_scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("has_softmax_scale", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]
    fields += [(field, ctypes.c_int32) for field in added.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def quantize_params_type() -> type[ctypes.Structure]:
    fields: list[tuple[str, Any]] = [("struct_size", ctypes.c_uint64), ("exec", Execution)]
    tensors = "x out scale cu_seqlens seqused rotary_cos rotary_sin rotary_offset"
    fields += [(tensor, Tensor) for tensor in tensors.split()]
    fields += [("seed", ctypes.c_uint64)]
    fields += [(flag, ctypes.c_int32) for flag in ("rotate", "rotary_interleaved", "transposed", "reserved")]
    return type("QuantizeFp8Params", (ctypes.Structure,), {"_fields_": fields})


FORWARD = "q k v out lse sink q_scale k_scale v_scale"
BACKWARD = "q k v out lse dout dlse dq dk dv sink dsink"
PACKED = "cu_seqlens_q cu_seqlens_k"
USED = "seqused_q seqused_k"
LENGTHS = "max_seqlen_q max_seqlen_k"
ADDED = "v_transposed reserved_2"
PARAMS = {
    "forward": params_type("ForwardParams", f"{FORWARD} {USED}", added=ADDED),
    "varlen_forward": params_type("VarlenForwardParams", f"{FORWARD} {PACKED} {USED}", LENGTHS, ADDED),
    "backward": params_type("BackwardParams", f"{BACKWARD} {USED}"),
    "varlen_backward": params_type("VarlenBackwardParams", f"{BACKWARD} {PACKED} {USED}", LENGTHS),
    "quantize_fp8": quantize_params_type(),
}


class TandemError(RuntimeError):
    """A call's sentence about why it failed."""


def view(tensor: torch.Tensor) -> Tensor:
    return Tensor(
        tensor.data_ptr(),
        DTYPE_NUMBERS[tensor.dtype],
        tensor.ndim,
        (ctypes.c_int64 * MAX_NDIM)(*tensor.shape),
        (ctypes.c_int64 * MAX_NDIM)(*tensor.stride()),
    )


class Tandem:
    """The C interface of one libtandem."""

    def __init__(self, path: pathlib.Path, threads: int = 0):
        self.library = ctypes.CDLL(str(path))
        self.library.tandem_last_error.restype = ctypes.c_char_p
        self.library.tandem_version.restype = ctypes.c_char_p
        self.threads = threads
        for operation, kind in PARAMS.items():
            self._expect_size(operation, kind)

    def _expect_size(self, operation: str, kind: type[ctypes.Structure]) -> None:
        """The check call looks at struct_size first, and then misses q or x."""
        params = kind(struct_size=ctypes.sizeof(kind))
        getattr(self.library, f"tandem_{operation}_check")(ctypes.byref(params))
        if "struct_size" in self.last_error():
            raise TandemError(f"this mirror of tandem_{operation}_params is not the library's: {self.last_error()}")

    def last_error(self) -> str:
        return self.library.tandem_last_error().decode()

    def check(self, status: int) -> None:
        if status != 0:
            raise TandemError(self.last_error())

    def prepared_call(
        self, operation: str, tensors: dict[str, torch.Tensor], mask: dict[str, Any] | None = None, **options: Any
    ) -> Callable[[], None]:
        """Everything but the run: parameters filled in, workspace allocated. On CUDA it runs on torch's current stream.

        mask: fields of tandem_mask, lo and hi as tensors; options: numbers of the struct or of exec.
        """
        params = PARAMS[operation]()
        params.struct_size = ctypes.sizeof(params)
        for name, tensor in tensors.items():
            setattr(params, name, view(tensor))
        for name, value in (mask or {}).items():
            setattr(params.mask, name, view(value) if isinstance(value, torch.Tensor) else value)
        for name, value in options.items():
            setattr(params.exec if hasattr(params.exec, name) else params, name, value)
        device = next(iter(tensors.values())).device
        if device.type == "cuda":
            params.exec.device_type = CUDA
            params.exec.device_ordinal = device.index
            params.exec.stream = torch.cuda.current_stream(device).cuda_stream
        else:
            params.exec.num_threads = self.threads
        storage = self._workspace(operation, params, device)
        run = getattr(self.library, f"tandem_{operation}")
        pointer = ctypes.byref(params)

        def call(keep: Any = (storage, tensors, mask)) -> None:
            self.check(run(pointer))

        return call

    def _workspace(self, operation: str, params: ctypes.Structure, device: torch.device) -> torch.Tensor:
        size, alignment = ctypes.c_uint64(), ctypes.c_uint64()
        measure = getattr(self.library, f"tandem_{operation}_workspace")
        self.check(measure(ctypes.byref(params), ctypes.byref(size), ctypes.byref(alignment)))
        storage = torch.empty(size.value + alignment.value, dtype=torch.uint8, device=device)
        params.exec.workspace = -(-storage.data_ptr() // alignment.value) * alignment.value
        params.exec.workspace_bytes = size.value
        return storage
