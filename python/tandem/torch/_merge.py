"""Kernel, fake kernel and derivative of tandem::merge.

    LSE = log(sum_n exp(LSE_n) + exp(sink))      w_n = exp(LSE_n - LSE)      O = sum_n w_n O_n

so, with delta_n = dot(dO, O_n - O):

    dO_n = w_n dO      dLSE_n = w_n (delta_n + dLSE)      dsink = sum over rows of exp(sink - LSE) (dLSE - dot(dO, O))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tandem.torch._run import readable, run


def _empty_results(out_partial: Tensor, lse_partial: Tensor) -> tuple[Tensor, Tensor]:
    return out_partial.new_empty(out_partial.shape[1:]), lse_partial.new_empty(lse_partial.shape[1:])


def forward(out_partial: Tensor, lse_partial: Tensor, sink: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    out, lse = _empty_results(out_partial, lse_partial)
    tensors = {"out_partial": readable(out_partial), "lse_partial": lse_partial, "sink": sink, "out": out, "lse": lse}
    run("merge", out_partial.device, tensors, options)
    return out, lse


def forward_fake(
    out_partial: Tensor, lse_partial: Tensor, sink: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    return _empty_results(out_partial, lse_partial)


def save(ctx: Any, inputs: tuple[Tensor | None, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.set_materialize_grads(False)


def _per_row(weights: Tensor) -> Tensor:
    """(..., nheads, rows) to (..., rows, nheads, 1), which broadcasts over out."""
    return weights.transpose(-1, -2).unsqueeze(-1)


def derivative(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    out_partial, lse_partial, sink, out, lse = ctx.saved_tensors
    dout_or_0 = (torch.zeros_like(out) if dout is None else dout).to(lse.dtype)
    dlse_or_0 = torch.zeros_like(lse) if dlse is None else dlse
    # A part with LSE_n = -inf is empty whatever its O_n holds, so both are selected away, never multiplied by 0.
    empty = lse_partial == -torch.inf
    weights = torch.exp(torch.where(empty, -torch.inf, lse_partial - lse))
    difference = torch.where(_per_row(empty), 0.0, out_partial.to(lse.dtype) - out.to(lse.dtype))
    delta = (dout_or_0 * difference).sum(-1).transpose(-1, -2)
    d_out_partial = (_per_row(weights) * dout_or_0).to(out_partial.dtype)
    d_lse_partial = weights * (delta + dlse_or_0)
    if sink is None:
        return d_out_partial, d_lse_partial, None
    sink_gradient = dlse_or_0 - (dout_or_0 * out.to(lse.dtype)).sum(-1).transpose(-1, -2)
    rows_of_head = [axis for axis in range(lse.ndim) if axis != lse.ndim - 2]
    d_sink = (torch.exp(sink.unsqueeze(-1) - lse) * sink_gradient).sum(rows_of_head)
    return d_out_partial, d_lse_partial, d_sink
