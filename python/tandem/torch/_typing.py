"""The keyword arguments of tandem.torch's functions, for their overloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tandem._options import Alignment


class AttentionOptions(TypedDict, total=False):
    """Keyword arguments of tandem.torch.attention but for return_lse."""

    causal: bool
    window: tuple[int, int]
    attention_chunk: int
    softmax_scale: float | None
    softcap: float
    sink: Tensor | None
    lo: Tensor | None
    hi: Tensor | None
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    alignment: Alignment
    q_scale: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    v_transposed: bool
    deterministic: bool
    out_dtype: torch.dtype | None
    backend: str | None
    num_threads: int | None
    sm_margin: int
    checked: bool


class VarlenAttentionOptions(AttentionOptions, total=False):
    """Keyword arguments of tandem.torch.attention_varlen but for return_lse."""

    max_seqlen_q: int | Tensor | None
    max_seqlen_k: int | Tensor | None
