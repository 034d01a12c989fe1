"""Attention in e4m3 on a Hopper GPU through tandem.torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from tandem import torch as tt  # noqa: E402

pytestmark = pytest.mark.cuda

DEVICE = "cuda"


def quantized(x: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    """By the CPU's quantiser."""
    out, scale = tt.quantize_fp8(x, **options)
    return out.to(DEVICE), scale.to(DEVICE)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "slots"])
@pytest.mark.parametrize("granularity", ["tensor", "head", "block"])
@pytest.mark.parametrize("headdim", [64, 96, 128, 256])
def test_attention(headdim: int, granularity: str, transposed: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, rows, heads, headdim, dtype=torch.bfloat16) for rows, heads in ((150, 4), *[(333, 2)] * 2)
    )
    q8, q_scale = quantized(q, granularity=granularity, rotate=True, seed=3)
    k8, k_scale = quantized(k, granularity=granularity, rotate=True, seed=3)
    v8, v_scale = quantized(v, granularity=granularity, transposed=transposed)
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    out = tt.attention(q8, k8, v8, **scales, causal=True, v_transposed=transposed, out_dtype=torch.bfloat16)
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double().repeat_interleave(2, 2)) * headdim**-0.5
    hidden = torch.ones(150, 333, dtype=torch.bool).triu(333 - 150 + 1)
    p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    right = torch.einsum("bhij,bjhd->bihd", p, v.double().repeat_interleave(2, 2))
    error = (out.cpu().double() - right).norm() / right.norm()
    assert out.dtype == torch.bfloat16
    assert error < 0.08  # three roundings to e4m3
