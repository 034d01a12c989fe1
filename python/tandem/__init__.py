"""Tandem: exact attention (FlashAttention-3) for NVIDIA Hopper GPUs and for CPUs.

Importing needs no GPU, no driver and no torch; ``tandem.torch`` and ``tandem.hf`` are imported on their own.
"""

from tandem import _core
from tandem.errors import TandemError

__version__: str = _core.version()

__all__ = ["TandemError", "__version__"]
