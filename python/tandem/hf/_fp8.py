"""Attention in fp8, from the 16-bit or 32-bit tensors of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tandem.torch import attention, attention_varlen, quantize_fp8

if TYPE_CHECKING:
    from tandem._quantize import Granularity
    from tandem.torch._typing import AttentionOptions


@dataclass(frozen=True)
class Fp8:
    """How a model's q, k and v become fp8, anew in each call.

    Attributes:
        rotate: spread the outliers of q and k (incoherent processing).
        granularity: which rows share a scale: "tensor", "head" or "block" (of 128 rows).
        seed: of the rotation.
    """

    rotate: bool = True
    granularity: Granularity = "block"
    seed: int = 0

    def attention(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        return self._run(q, k, v, None, options)

    def attention_varlen(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, options: AttentionOptions
    ) -> Tensor:
        return self._run(q, k, v, (cu_seqlens_q, cu_seqlens_k), options)

    def _run(
        self, q: Tensor, k: Tensor, v: Tensor, offsets: tuple[Tensor, Tensor] | None, given: AttentionOptions
    ) -> Tensor:
        options: dict[str, Any] = {**given, "out_dtype": torch.float32 if q.dtype == torch.float64 else q.dtype}
        if options.get("softmax_scale") is None:
            options["softmax_scale"] = q.shape[-1] ** -0.5  # of the model's headdim, not of a padded one
        dtype = q.dtype
        q, k, v = (t.float() if t.dtype == torch.float64 else t for t in (q, k, v))
        if self.rotate:
            missing = rotated_headdim(q.shape[-1]) - q.shape[-1]
            q, k = (pad(t, (0, missing)) if missing else t for t in (q, k))
        of_rows, of_keys = offsets or (None, None)
        q, options["q_scale"] = self._quantize(q, of_rows, self.rotate)
        k, options["k_scale"] = self._quantize(k, of_keys, self.rotate)
        options["v_transposed"] = wants_transposed(v)
        v, options["v_scale"] = self._quantize(v, of_keys, False, options["v_transposed"])
        out: Tensor = attention_varlen(q, k, v, *offsets, **options) if offsets else attention(q, k, v, **options)
        return out.to(dtype)

    def _quantize(
        self, x: Tensor, cu_seqlens: Tensor | None, rotate: bool, transposed: bool = False
    ) -> tuple[Tensor, Tensor]:
        return quantize_fp8(
            x,
            granularity=self.granularity,
            rotate=rotate,
            seed=self.seed if rotate else 0,
            transposed=transposed,
            cu_seqlens=cu_seqlens,
        )


def wants_transposed(v: Tensor) -> bool:
    """A GPU's kernel reads V^T; one that comes as V is transposed there, block by block, for every query tile."""
    return v.is_cuda and v.shape[-1] % 16 == 0


def rotated_headdim(headdim: int) -> int:
    """The next one that has a Hadamard matrix: a power of two, or 12 times one."""
    power = 1 << max(headdim - 1, 0).bit_length()
    with_twelve = power * 3 // 4  # between power / 2 and power
    return with_twelve if headdim <= with_twelve and with_twelve % 12 == 0 else power
