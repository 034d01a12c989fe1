"""tandem.torch in eager mode: values, gradients and strides, against attention written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_definition as definition  # noqa: E402
from torch import Tensor  # noqa: E402
from torch_definition import assert_same_bits, gradients, inputs  # noqa: E402

from tandem import torch as tt  # noqa: E402


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ------------------------------------------------------------------------------------------------------------- values

MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "causal_top_left": {"causal": True, "alignment": "top-left"},
    "window": {"window": (2, 1)},
    "sliding": {"causal": True, "window": (2, 0)},
    "chunk": {"causal": True, "attention_chunk": 3},
}


@pytest.mark.parametrize("rows", [5, 9])
@pytest.mark.parametrize("mask", MASKS)
def test_value_and_gradients(mask: str, rows: int, backend: str) -> None:
    """Gradients arrive through out and LSE; 9 rows for 7 keys leave rows that see nothing."""
    q, k, v = inputs(rows=rows)
    see = definition.visible(rows, 7, **MASKS[mask])
    out, lse = tt.attention(q, k, v, **MASKS[mask], return_lse=True, backend=backend)
    expected_out, expected_lse = definition.attention(q, k, v, see)
    torch.testing.assert_close(out, expected_out)
    torch.testing.assert_close(lse, expected_lse)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    finite = torch.where(expected_lse.isfinite(), dlse, 0.0)
    expected = gradients((expected_out, expected_lse), (q, k, v), (dout, finite))
    for got, right in zip(gradients((out, lse), (q, k, v), (dout, dlse)), expected, strict=True):
        torch.testing.assert_close(got, right)
    empty = ~see.any(-1)
    assert torch.equal(out[:, empty], torch.zeros_like(out[:, empty]))
    assert torch.equal(lse[..., empty], torch.full_like(lse[..., empty], -math.inf))


def test_scale_softcap_and_sink(backend: str) -> None:
    q, k, v = inputs()
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"softmax_scale": -0.7, "softcap": 3.0, "sink": sink}
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True, backend=backend, **options)
    expected = definition.attention(q, k, v, definition.visible(5, 7, causal=True), **options)
    torch.testing.assert_close((out, lse), expected)
    tangents = torch.randn_like(out), torch.randn_like(lse)
    for got, right in zip(
        gradients((out, lse), (q, k, v, sink), tangents), gradients(expected, (q, k, v, sink), tangents), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_row_intervals_and_used_lengths(backend: str) -> None:
    q, k, v = inputs()
    lo = torch.randint(0, 4, (2, 1, 5), dtype=torch.int32)
    hi = torch.randint(2, 8, (1, 4, 5), dtype=torch.int32)
    used_q, used_k = torch.tensor([5, 3], dtype=torch.int32), torch.tensor([4, 7], dtype=torch.int32)
    out = tt.attention(q, k, v, lo=lo, hi=hi, seqused_q=used_q, seqused_k=used_k, backend=backend)
    key = torch.arange(7)
    see = (key >= lo[..., None]) & (key < hi[..., None])
    see = see & (key < used_k[:, None, None, None]) & (torch.arange(5)[:, None] < used_q[:, None, None, None])
    expected, _ = definition.attention(q, k, v, see)
    torch.testing.assert_close(out, expected)
    dout = torch.randn_like(out)
    for got, right in zip(gradients(out, (q, k, v), (dout,)), gradients(expected, (q, k, v), (dout,)), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_error_is_at_most_twice_that_of_plain_attention(dtype: torch.dtype, backend: str) -> None:
    """Contract 16, for the forward and the gradients."""
    q, k, v = inputs(rows=33, keys=40, headdim_v=16, dtype=dtype)
    out = tt.attention(q, k, v, causal=True, backend=backend)
    assert out.dtype == dtype
    dout = torch.randn_like(out)
    see = definition.visible(33, 40, causal=True)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * 16**-0.5
        return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~see, -math.inf).softmax(-1), v)

    def all_of(result: Tensor) -> tuple[Tensor, ...]:
        return result, *gradients(result, (q, k, v), (dout.to(result.dtype),))

    exact = all_of(definition.attention(q, k, v, see)[0])
    for got, rough, right in zip(all_of(out), all_of(plain(q, k, v)), exact, strict=True):
        allowed = 2 * (rough.double() - right).abs().max() + 2 * torch.finfo(dtype).eps * right.abs().max()
        assert (got.double() - right).abs().max() <= allowed


def test_gradcheck() -> None:
    q, k, v = inputs(batch=1, rows=3, keys=4, headdim=4, headdim_v=3)
    sink = torch.randn(4, dtype=torch.float64, requires_grad=True)

    def function(*tensors: Tensor) -> Any:
        return tt.attention(*tensors[:3], sink=tensors[3], causal=True, softcap=2.0, return_lse=True)

    assert torch.autograd.gradcheck(function, (q, k, v, sink))


def test_C67_gradient_through_lse() -> None:
    """Scores 0 and ln 3, V = [0, 4]: P = [1/4, 3/4]."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor([0.0, math.log(3)], dtype=torch.float64).reshape(1, 2, 1, 1).requires_grad_()
    v = torch.tensor([0.0, 4.0], dtype=torch.float64).reshape(1, 2, 1, 1).requires_grad_()
    out, lse = tt.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(out.item(), 3.0)
    torch.testing.assert_close(lse.item(), math.log(4))
    (dk,) = torch.autograd.grad(lse, k, torch.ones_like(lse), retain_graph=True)  # q is 1 and the scale is 1: dS = dK
    torch.testing.assert_close(dk.flatten(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    dk, dv = torch.autograd.grad(out, (k, v), torch.ones_like(out))
    torch.testing.assert_close(dk.flatten(), torch.tensor([-0.75, 0.75], dtype=torch.float64))
    torch.testing.assert_close(dv.flatten(), torch.tensor([0.25, 0.75], dtype=torch.float64))


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, 3, 4), (2, 0, 4), (2, 7, 0)])
def test_C09_C10_empty(batch: int, rows: int, keys: int, backend: str) -> None:
    q, k, v = inputs(batch=batch, rows=rows, keys=keys)
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True, backend=backend)
    assert torch.equal(out, torch.zeros(batch, rows, 4, 8, dtype=torch.float64))
    assert torch.equal(lse, torch.full((batch, 4, rows), -math.inf, dtype=torch.float64))
    for tensor, gradient in zip((q, k, v), gradients(out, (q, k, v), (torch.ones_like(out),)), strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


# ------------------------------------------------------------------------------------------------------------ strides


def results(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    out, lse = tt.attention(q, k, v, causal=True, return_lse=True, deterministic=True)
    return out, lse, *torch.autograd.grad(out, (q, k, v), dout)


def contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in tensors)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda: torch.randn(2, 6, 3, 4, 64).unbind(2), id="C48_slices_of_one_tensor"),
        pytest.param(lambda: tuple(torch.randn(2, 4, 6, 64).transpose(1, 2) for _ in range(3)), id="C51_transposed"),
        pytest.param(
            lambda: (torch.randn(2, 6, 4, 64), torch.randn(2, 6, 4, 64), torch.randn(2, 4, 6, 64).transpose(1, 2)),
            id="C51_only_v",
        ),
        pytest.param(lambda: tuple(torch.randn(2, 6, 64, 4).mT for _ in range(3)), id="C53_last_axis"),
        pytest.param(lambda: tuple(torch.randn(2, 6, 4, 65)[..., 1:] for _ in range(3)), id="C50_odd_base_and_rows"),
        pytest.param(lambda: tuple(torch.randn(1, 1, 4, 64).expand(2, 6, 4, 64) for _ in range(3)), id="expanded"),
    ],
)
def test_strides_change_no_bit(view: Any) -> None:
    q, k, v = (t.detach().requires_grad_() for t in view())
    dout = torch.randn(2, 6, 4, 64)
    assert_same_bits(results(q, k, v, dout), results(*contiguous(q, k, v), dout))


def test_C49_stride_of_an_axis_of_size_1() -> None:
    q, k, v = inputs(batch=1, heads=2, kv_heads=1, headdim_v=16, dtype=torch.float32)
    odd_k, odd_v = (t.detach().as_strided(t.shape, (0, 16, 2, 1)).requires_grad_() for t in (k, v))
    dout = torch.randn(1, 5, 2, 16)
    assert_same_bits(results(q, odd_k, odd_v, dout), results(q, k, v, dout))


@pytest.mark.parametrize(
    "dout",
    [
        pytest.param(lambda: torch.randn(2, 4, 32, 128).transpose(1, 2), id="C46_transposed"),
        pytest.param(lambda: torch.ones(()).expand(2, 32, 4, 128), id="of_sum"),
        pytest.param(lambda: torch.randn(32, 1, 128).expand(2, 32, 4, 128), id="expanded"),
    ],
)
def test_strides_of_dout(dout: Any) -> None:
    q, k, v = inputs(rows=32, keys=32, kv_heads=1, headdim=128, headdim_v=128, dtype=torch.float32)
    gradient = dout()
    assert_same_bits(results(q, k, v, gradient), results(q, k, v, gradient.contiguous()))


def test_expanded_inputs_get_summed_gradients() -> None:
    """One key head of storage, seen as two through expand: its gradient is the sum of both."""
    q, k, v = inputs(kv_heads=1)
    out = tt.attention(q, k.expand(2, 7, 2, 16), v.expand(2, 7, 2, 8))
    grouped = tt.attention(q, k, v)
    torch.testing.assert_close(out, grouped)
    dout = torch.randn_like(out)
    for got, right in zip(gradients(out, (k, v), (dout,)), gradients(grouped, (k, v), (dout,)), strict=True):
        torch.testing.assert_close(got, right)


def test_padding_for_gpu_kernels_changes_nothing() -> None:
    """C83: headdim 59 and 13 become multiples of 8, with the scale of 59."""
    q, k, v = inputs(headdim=59, headdim_v=13)
    options: dict[str, Any] = {"softmax_scale": None}
    padded = tt._pad_headdims(q, k, v, options)
    assert [t.shape[-1] for t in padded] == [64, 64, 16]
    out = tt.attention(*padded, **options)[..., :13]
    torch.testing.assert_close(out, tt.attention(q, k, v))
    explicit: dict[str, Any] = {"softmax_scale": 0.5}
    tt._pad_headdims(q, k, v, explicit)
    assert explicit == {"softmax_scale": 0.5}
