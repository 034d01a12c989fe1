"""From torch tensors to the integers of tandem._core: views, devices, streams and scratch memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tandem import _core
from tandem._arrays import gpu_reads_in_place
from tandem.errors import InvalidArgumentError

DTYPES: dict[torch.dtype, int] = {
    torch.float64: _core.FP64,
    torch.float32: _core.FP32,
    torch.float16: _core.FP16,
    torch.bfloat16: _core.BF16,
    torch.float8_e4m3fn: _core.E4M3,
    torch.float8_e5m2: _core.E5M2,
    torch.int32: _core.INT32,
}
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def view(name: str, tensor: torch.Tensor) -> _core.Tensor:
    """A view of the tensor's memory; the caller keeps the tensor alive."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidArgumentError(
            f"{name} has dtype {tensor.dtype}; allowed are float64 (CPU), float32 (CPU), float16, bfloat16, "
            "float8_e4m3fn and float8_e5m2, and int32 for offsets, lengths and row intervals"
        )
    return _core.Tensor(tensor.data_ptr(), dtype, tensor.shape, tensor.stride())


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if the backends read it in place, else a contiguous copy."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        return tensor.contiguous()
    if tensor.is_cuda and not _aligned_for_tma(tensor):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _aligned_for_tma(tensor: torch.Tensor) -> bool:
    return gpu_reads_in_place(tensor.data_ptr(), tensor.itemsize, tensor.shape, tensor.stride())


@cache
def _prepare(device_index: int) -> None:
    """Loads the kernels at the first call on a device, so that later ones can be captured in a CUDA graph."""
    _core.prepare((_core.CUDA, device_index))


def run(name: str, device: torch.device, tensors: dict[str, torch.Tensor | None], options: dict[str, Any]) -> None:
    """Calls ``_core.<name>``: on the CPU with torch's number of threads, on CUDA on torch's current stream.

    Tensors need no record_stream: like a kernel of torch's own, this one is queued on the stream whose order torch's
    allocator keeps, before the caller can free anything.
    """
    arguments: dict[str, Any] = {key: view(key, tensor) for key, tensor in tensors.items() if tensor is not None}
    arguments.update(options)
    if device.type == "cpu":
        # torch.set_num_threads counts here too; a DataLoader worker has set it to 1.
        arguments["num_threads"] = arguments["num_threads"] or torch.get_num_threads()
        getattr(_core, name)(**arguments)
        return
    _prepare(device.index)
    arguments["device"] = (_core.CUDA, device.index)
    arguments["stream"] = torch._C._cuda_getCurrentRawStream(device.index)
    scratch_bytes, _ = getattr(_core, name + "_workspace")(**arguments)  # torch aligns to 512 bytes
    scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=device)
    getattr(_core, name)(**arguments, workspace=scratch.data_ptr(), workspace_bytes=scratch_bytes)
