"""fp8 in tandem.torch: ops, fake kernels, refused gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch_definition import attention as definition  # noqa: E402
from torch_definition import visible  # noqa: E402

import tandem  # noqa: E402
from tandem import torch as tt  # noqa: E402

ATTENTION_OPTIONS: dict[str, Any] = {
    "causal": True,
    "top_left": False,
    "window": None,
    "attention_chunk": 0,
    "softmax_scale": None,
    "softcap": 0.0,
    "deterministic": False,
    "checked": False,
    "backend": 0,
    "num_threads": 0,
    "sm_margin": 0,
    "v_transposed": False,
}
QUANTIZE_OPTIONS: dict[str, Any] = {
    "granularity": "block",
    "max_seqlen": None,
    "rotate": False,
    "seed": 0,
    "rotary_interleaved": False,
    "transposed": False,
    "checked": False,
    "backend": 0,
    "num_threads": 0,
    "sm_margin": 0,
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def inputs(
    rows: int = 150, heads: int = 2, headdim: int = 64, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, rows, heads, headdim).to(dtype) for _ in range(3))


def fp8_attention(q: Tensor, k: Tensor, v: Tensor, *, rotate: bool = True, transposed: bool = False) -> Tensor:
    q8, q_scale = tt.quantize_fp8(q, rotate=rotate)
    k8, k_scale = tt.quantize_fp8(k, rotate=rotate)
    v8, v_scale = tt.quantize_fp8(v, transposed=transposed)
    return tt.attention(
        q8, k8, v8, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, v_transposed=transposed, causal=True
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_quantise_and_attend(transposed: bool) -> None:
    q, k, v = inputs()
    out = fp8_attention(q, k, v, transposed=transposed)
    expected, _ = definition(q, k, v, visible(150, 150, causal=True))
    assert out.dtype == torch.bfloat16
    assert out.shape == q.shape
    assert (out - expected).pow(2).mean().sqrt() < 0.1 * expected.pow(2).mean().sqrt()


def test_packed_is_each_sequence_alone() -> None:
    cu = torch.tensor([0, 140, 150], dtype=torch.int32)
    q, k, v = (t[0] for t in inputs())
    (q8, qs), (k8, ks), (v8, vs) = (tt.quantize_fp8(t, cu_seqlens=cu, max_seqlen=140) for t in (q, k, v))
    out = tt.attention_varlen(q8, k8, v8, cu, cu, q_scale=qs, k_scale=ks, v_scale=vs)
    for begin, end in ((0, 140), (140, 150)):
        (a8, a), (b8, b), (c8, c) = (tt.quantize_fp8(t[None, begin:end]) for t in (q, k, v))
        assert torch.equal(out[begin:end], tt.attention(a8, b8, c8, q_scale=a, k_scale=b, v_scale=c)[0])


def test_C81_gradients_are_refused_in_words() -> None:
    q, k, v = inputs()
    q8, k8, v8 = (tt.quantize_fp8(t)[0] for t in (q, k, v))
    with pytest.raises(tandem.UnsupportedError, match=r"tandem\.torch\.attention of fp8 tensors has no derivative"):
        tt.attention(q8.requires_grad_(), k8, v8)
    with pytest.raises(tandem.UnsupportedError, match=r"tandem\.torch\.quantize_fp8 has no derivative"):
        tt.quantize_fp8(q.requires_grad_())
    scale = torch.ones(1, requires_grad=True)
    with pytest.raises(tandem.UnsupportedError, match="no derivative"):
        tt.attention(q8.detach(), k8, v8, v_scale=scale)
    with torch.no_grad():
        assert torch.equal(tt.quantize_fp8(q)[1], tt.quantize_fp8(q.detach())[1])


def test_C80_mixed_types_are_refused() -> None:
    q, k, v = inputs()
    k8, v8 = tt.quantize_fp8(k)[0], tt.quantize_fp8(v)[0]
    with pytest.raises(tandem.InvalidArgumentError, match=r"k\.dtype is e4m3 but q\.dtype is bf16"):
        tt.attention(q, k8, v8)
    with pytest.raises(tandem.InvalidArgumentError, match=r"q_scale is given but q\.dtype is bf16"):
        tt.attention(q, k, v, q_scale=torch.ones(1))
    with pytest.raises(tandem.InvalidArgumentError, match=r"v_transposed is 1 but q\.dtype is bf16"):
        tt.attention(q, k, v, v_transposed=True)


def test_compiled_without_a_break() -> None:
    q, k, v = inputs()
    compiled = torch.compile(fp8_attention, fullgraph=True, backend="aot_eager")
    for transposed in (False, True):
        assert torch.equal(compiled(q, k, v, transposed=transposed), fp8_attention(q, k, v, transposed=transposed))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("granularity", ["tensor", "head", "block"])
def test_fake_kernels_of_the_quantiser(granularity: str, transposed: bool) -> None:
    options = {**QUANTIZE_OPTIONS, "granularity": granularity, "transposed": transposed}
    none = (None,) * 5
    torch.library.opcheck(torch.ops.tandem.quantize_fp8.default, (inputs()[0], *none), options)
    cu = torch.tensor([0, 3, 150], dtype=torch.int32)
    torch.library.opcheck(torch.ops.tandem.quantize_fp8.default, (inputs()[0][0], cu, *none[1:]), options)


def test_fake_kernels_of_attention() -> None:
    q8, k8, v8 = (tt.quantize_fp8(t)[0] for t in inputs())
    transposed = tt.quantize_fp8(inputs()[2], transposed=True)[0]
    scale = torch.ones(2, 2)
    for v, options in ((v8, {}), (transposed, {"v_transposed": True})):
        torch.library.opcheck(
            torch.ops.tandem.fp8_attention.default,
            (q8, k8, v, *(None,) * 5, scale, None, scale),
            {**ATTENTION_OPTIONS, **options},
            test_utils=(
                "test_faketensor",
                "test_autograd_registration",
            ),  # the others compare fp8 inputs, with no torch op
        )
    assert tt.attention(*(t.to("meta") for t in (q8, k8, transposed)), v_transposed=True).shape == q8.shape


def test_devices_are_named() -> None:
    with pytest.raises(tandem.InvalidArgumentError, match="seqused is on meta, but x on cpu"):
        tt.quantize_fp8(inputs()[0], seqused=torch.zeros(2, dtype=torch.int32, device="meta"))
