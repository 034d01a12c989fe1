"""Attention by its definition in torch's float64, with torch's own derivatives, and inputs for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def visible(
    rows: int,
    keys: int,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    alignment: str = "bottom-right",
) -> Tensor:
    """(rows, keys) booleans: which row sees which key [3]."""
    position = torch.arange(rows)[:, None] + (keys - rows if alignment == "bottom-right" else 0)
    key = torch.arange(keys)[None, :]
    see = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        see &= key <= position
    if window[0] != -1:
        see &= key >= position - window[0]
    if window[1] != -1:
        see &= key <= position + window[1]
    if attention_chunk:
        see &= key // attention_chunk == position.div(attention_chunk, rounding_mode="floor")
    return see


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    see: Tensor,
    *,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q (batch, rows, heads, headdim) for see, booleans that broadcast to (batch, heads, rows, keys)."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.double(), k.double().repeat_interleave(group, 2), v.double().repeat_interleave(group, 2)
    scores = (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale) * torch.einsum("bihd,bjhd->bhij", q, k)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    terms = torch.where(see, scores, 0.0).exp() * see
    total = terms.sum(-1)
    if sink is not None:
        total = total + sink.double().exp()[:, None]
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    out = torch.einsum("bhij,bjhd->bihd", terms / total[..., None], v)
    return out, torch.where(empty, -torch.inf, total.log())


def inputs(
    batch: int = 2,
    rows: int = 5,
    keys: int = 7,
    heads: int = 4,
    kv_heads: int = 2,
    headdim: int = 16,
    headdim_v: int = 8,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((batch, rows, heads, headdim), (batch, keys, kv_heads, headdim), (batch, keys, kv_heads, headdim_v))
    return tuple(torch.randn(shape).to(dtype).requires_grad_(requires_grad) for shape in shapes)


def gradients(results: Any, to: tuple[Tensor, ...], of: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(results, to, of, allow_unused=True, materialize_grads=True)


def assert_same_bits(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)
