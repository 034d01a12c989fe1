"""tandem.torch.attention_varlen and merge, against attention written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_definition as definition  # noqa: E402
from torch import Tensor  # noqa: E402
from torch_definition import gradients, inputs  # noqa: E402

import tandem  # noqa: E402
from tandem import torch as tt  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------------------------- packed


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def packed(total_q: int, total_k: int, heads: int = 4, kv_heads: int = 2, headdim: int = 16) -> tuple[Tensor, ...]:
    shapes = ((total_q, heads, headdim), (total_k, kv_heads, headdim), (total_k, kv_heads, headdim))
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)


def test_varlen_equals_its_sequences(backend: str) -> None:
    """Rows without keys, keys without rows, and one row behind the last offset."""
    lengths_q, lengths_k = (3, 0, 5, 1), (4, 2, 0, 6)
    q, k, v = packed(10, 12)
    cu_q, cu_k = offsets(*lengths_q), offsets(*lengths_k)
    out, lse = tt.attention_varlen(q, k, v, cu_q, cu_k, causal=True, return_lse=True, backend=backend)
    expected_out, expected_lse = [], []
    for b, (rows, keys) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        one_q, one_k, one_v = q[cu_q[b] : cu_q[b + 1]], k[cu_k[b] : cu_k[b + 1]], v[cu_k[b] : cu_k[b + 1]]
        see = definition.visible(rows, keys, causal=True)
        one_out, one_lse = definition.attention(one_q[None], one_k[None], one_v[None], see)
        expected_out.append(one_out[0])
        expected_lse.append(one_lse[0])
    expected_out.append(torch.zeros(1, 4, 16, dtype=torch.float64))
    expected_lse.append(torch.full((4, 1), -math.inf, dtype=torch.float64))
    expected = torch.cat(expected_out), torch.cat(expected_lse, 1)
    torch.testing.assert_close((out, lse), expected)
    dout = torch.randn_like(out)
    for got, right in zip(gradients(out, (q, k, v), (dout,)), gradients(expected[0], (q, k, v), (dout,)), strict=True):
        torch.testing.assert_close(got, right)


def test_C20_gaps_count_for_nothing() -> None:
    q, k, v = packed(9, 9)
    used = torch.tensor([2, 3, 1], dtype=torch.int32)
    kept = torch.tensor([0, 1, 3, 4, 5, 7])
    gapped = tt.attention_varlen(q, k, v, offsets(3, 4, 2), offsets(3, 4, 2), seqused_q=used, seqused_k=used)
    tight = tt.attention_varlen(q[kept], k[kept], v[kept], offsets(2, 3, 1), offsets(2, 3, 1))
    torch.testing.assert_close(gapped[kept], tight)
    assert torch.count_nonzero(gapped) == torch.count_nonzero(gapped[kept])
    for got, right in zip(
        gradients(gapped, (q, k, v), (torch.ones_like(gapped),)),
        gradients(tight, (q, k, v), (torch.ones_like(tight),)),
        strict=True,
    ):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("length", [5, None, torch.tensor(5)])
def test_C96_max_seqlen_may_be_a_tensor(length: Any) -> None:
    q, k, v = packed(9, 9)
    cu = offsets(4, 5)
    out = tt.attention_varlen(q, k, v, cu, cu, max_seqlen_q=length, max_seqlen_k=length)
    assert torch.equal(out, tt.attention_varlen(q, k, v, cu, cu))


def test_C90_offsets_of_another_type_are_refused() -> None:
    q, k, v = packed(9, 9)
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_q has dtype"):
        tt.attention_varlen(q, k, v, offsets(4, 5).long(), offsets(4, 5))
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_k is on meta"):
        tt.attention_varlen(q, k, v, offsets(4, 5), offsets(4, 5).to("meta"))


def test_C90_wrong_offsets_are_found_in_checked_mode() -> None:
    q, k, v = packed(9, 9)
    with pytest.raises(tandem.InvalidArgumentError, match="cu_seqlens_q"):
        tt.attention_varlen(q, k, v, offsets(4, 50), offsets(4, 5), checked=True)


# -------------------------------------------------------------------------------------------------------------- merge


def test_C13_merge_of_empty_parts() -> None:
    part = torch.randn(1, 1, 1, 4)
    empty, lse = torch.full_like(part, math.nan), torch.tensor([[[1.7]]])
    out, merged = tt.merge([empty, empty], [torch.full_like(lse, -math.inf)] * 2)
    assert torch.equal(out, torch.zeros_like(part))
    assert merged.item() == -math.inf
    out, merged = tt.merge([empty, part], [torch.full_like(lse, -math.inf), lse])
    assert torch.equal(out, part)
    assert torch.equal(merged, lse)
    _, merged = tt.merge([part, part], [torch.tensor([[[1.0]]]), torch.tensor([[[2.0]]])])
    assert merged.item() == pytest.approx(2.3132617, abs=1e-6)


@pytest.mark.parametrize("with_sink", [False, True])
def test_C69_gradients_through_merge_equal_the_unsplit_ones(with_sink: bool) -> None:
    """Keys in three parts, one of them empty for the first rows."""
    q, k, v = inputs(rows=8, keys=9, headdim_v=16)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True) if with_sink else None
    whole = tt.attention(q, k, v, causal=True, sink=sink, return_lse=True)
    rows = torch.arange(8, dtype=torch.int32)
    parts = []
    for start in (0, 3, 6):
        hi = (rows + 2 - start).reshape(1, 1, 8)  # causal: row i sees the keys up to i + 1 of all 9
        one_k, one_v = k[:, start : start + 3], v[:, start : start + 3]
        parts.append(tt.attention(q, one_k, one_v, hi=hi, return_lse=True))
    merged = tt.merge([out for out, _ in parts], [lse for _, lse in parts], sink)
    torch.testing.assert_close(merged, whole)
    tangents = torch.randn_like(whole[0]), torch.randn_like(whole[1])
    to = (q, k, v) if sink is None else (q, k, v, sink)
    for got, right in zip(gradients(merged, to, tangents), gradients(whole, to, tangents), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("packed", [False, True])
def test_C69_parts_in_fp32_of_16_bit_inputs(packed: bool) -> None:
    """Ring attention: only the inputs and the gradients are rounded to bf16, as in one call."""
    q, k, v = inputs(batch=1, rows=8, keys=9, headdim_v=16, dtype=torch.bfloat16)
    exact = tuple(t.detach().double().requires_grad_() for t in (q, k, v))

    def attend(start: int, stop: int) -> tuple[Tensor, Tensor]:
        part = k[:, start:stop], v[:, start:stop]
        if not packed:
            return tt.attention(q, *part, return_lse=True, out_dtype=torch.float32)
        cu_k = offsets(stop - start)
        flat = (t[0] for t in (q, *part))
        out, lse = tt.attention_varlen(*flat, offsets(8), cu_k, return_lse=True, out_dtype=torch.float32)
        return out[None], lse[None]

    parts = [attend(start, start + 3) for start in (0, 3, 6)]
    assert all(out.dtype == torch.float32 for out, _ in parts)
    merged = tt.merge([out for out, _ in parts], [lse for _, lse in parts])
    whole = definition.attention(*exact, definition.visible(8, 9))
    torch.testing.assert_close(merged[0].double(), whole[0], rtol=1e-5, atol=1e-5)  # a bf16 result is off by 4e-3
    torch.testing.assert_close(merged[1].double(), whole[1], rtol=1e-5, atol=1e-5)
    dout = torch.randn_like(whole[0])
    got = gradients(merged[0], (q, k, v), (dout.float(),))
    for gradient, right in zip(got, gradients(whole[0], exact, (dout,)), strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), right, rtol=3 * 2**-8, atol=3 * 2**-8)
