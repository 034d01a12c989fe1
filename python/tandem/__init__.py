"""Tandem: exact attention (FlashAttention-3) for NVIDIA Hopper GPUs and for CPUs.

Importing needs no GPU, no driver and no torch; ``tandem.torch`` and ``tandem.hf`` are imported on their own.
"""

from tandem import _core
from tandem._attention import (
    attention,
    attention_backward,
    attention_varlen,
    attention_varlen_backward,
    info,
    merge,
)
from tandem._quantize import quantize_fp8
from tandem.errors import (
    DeviceError,
    InternalError,
    InvalidArgumentError,
    NoDeviceError,
    OutOfMemoryError,
    TandemError,
    UnsupportedError,
    WorkspaceTooSmallError,
)

__version__: str = _core.version()

__all__ = [
    "DeviceError",
    "InternalError",
    "InvalidArgumentError",
    "NoDeviceError",
    "OutOfMemoryError",
    "TandemError",
    "UnsupportedError",
    "WorkspaceTooSmallError",
    "__version__",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "info",
    "merge",
    "quantize_fp8",
]
