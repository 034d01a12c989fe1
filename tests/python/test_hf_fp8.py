"""Models of transformers with attention in fp8."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hf_models import DECODERS, ENCODERS, build, last_hidden, llama, padding, tokens  # noqa: E402
from torch import Tensor  # noqa: E402

import tandem  # noqa: E402
import tandem.hf  # noqa: E402
from tandem.hf._fp8 import rotated_headdim  # noqa: E402


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    tandem.hf.register("tandem-fp8", fp8=tandem.hf.Fp8())
    tandem.hf.register("tandem-fp8-plain", fp8=tandem.hf.Fp8(rotate=False, granularity="tensor"))
    tandem.hf.reset_call_count()


@torch.no_grad()
def run(model: Any, implementation: str, **inputs: Any) -> Tensor:
    model.set_attn_implementation(implementation)
    output = last_hidden(model(**inputs))
    mask = inputs.get("attention_mask")
    return output if mask is None else output[mask.bool()]


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("implementation", ["tandem-fp8", "tandem-fp8-plain"])
@pytest.mark.parametrize("make", [*DECODERS.values(), *ENCODERS.values()], ids=[*DECODERS, *ENCODERS])
def test_models_stay_near_their_own_attention(make: Any, implementation: str) -> None:
    model = build(make)
    mask = padding("left" if make.__name__ in DECODERS else "right")
    inputs = {"input_ids": tokens(), "attention_mask": mask}
    expected = run(model, "eager", **inputs)
    got = run(model, implementation, **inputs)
    assert tandem.hf.call_count() == model.config.num_hidden_layers
    errors = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert 0 < errors.median() < 0.2  # not the largest: a token may go to another expert


def test_16_bit_models_get_16_bits_back() -> None:
    model = build(llama).to(torch.bfloat16)
    assert run(model, "tandem-fp8", input_ids=tokens()).dtype == torch.bfloat16


def test_gradients_are_refused_in_words() -> None:
    model = build(llama)
    model.set_attn_implementation("tandem-fp8")
    with pytest.raises(tandem.UnsupportedError, match=r"quantize_fp8 has no derivative.* torch\.no_grad"):
        model(input_ids=tokens())


def test_packed_sequences_do_not_meet() -> None:
    fp8 = tandem.hf.Fp8()
    module = torch.nn.Module()
    q, k, v = (torch.randn(1, 2, 12, 16) for _ in range(3))  # (batch, heads, length, headdim)
    cu = torch.tensor([0, 5, 12], dtype=torch.int32)
    packed, _ = tandem.hf.attention_forward(
        module, q, k, v, None, is_causal=True, cu_seq_lens_q=cu, cu_seq_lens_k=cu, fp8=fp8
    )
    for begin, end in ((0, 5), (5, 12)):
        alone, _ = tandem.hf.attention_forward(
            module, *(t[:, :, begin:end] for t in (q, k, v)), None, is_causal=True, fp8=fp8
        )
        assert torch.equal(packed[:, begin:end], alone)


def test_head_dims_are_padded_for_the_rotation_and_keep_their_scale() -> None:
    assert [rotated_headdim(n) for n in (1, 8, 12, 40, 64, 72, 80, 96, 112, 160, 200)] == [
        1, 8, 12, 48, 64, 96, 96, 96, 128, 192, 256,
    ]  # fmt: skip
    q, k, v = (torch.randn(1, 2, 30, 80) for _ in range(3))
    got, _ = tandem.hf.attention_forward(torch.nn.Module(), q, k, v, None, is_causal=False, fp8=tandem.hf.Fp8())
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    assert got.shape == expected.shape
    assert relative_error(got, expected) < 0.1


def test_v_may_go_to_attention_transposed_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(llama)
    inputs = {"input_ids": tokens(), "attention_mask": padding("left")}
    expected = run(model, "tandem-fp8", **inputs)
    asked = []
    monkeypatch.setattr(tandem.hf._fp8, "wants_transposed", lambda v: asked.append(v.shape) or True)
    assert relative_error(run(model, "tandem-fp8", **inputs), expected) < 1e-4
    assert len(asked) == model.config.num_hidden_layers
