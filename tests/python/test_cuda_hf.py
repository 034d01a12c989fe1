"""Models of transformers with random weights on a Hopper GPU, through "tandem" and through their eager attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import (  # noqa: E402
    DECODER,
    DECODERS,
    ENCODERS,
    SLIDING,
    build,
    last_hidden,
    llama,
    padding,
    position_ids,
    tokens,
)
from torch import Tensor  # noqa: E402

import tandem.hf  # noqa: E402

pytestmark = pytest.mark.cuda

DEVICE = "cuda"


def gpt_oss() -> Any:
    """Every expert serves every token: a choice among them would turn rounding into another model."""
    options = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 2}
    return transformers.GptOssForCausalLM, transformers.GptOssConfig(**DECODER, **SLIDING, **options)


def llama_of_headdim_64() -> Any:
    sizes = {**DECODER, "hidden_size": 256, "max_position_embeddings": 512}
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**sizes)


MODELS: dict[str, Callable[[], Any]] = {
    **{name: DECODERS[name] for name in ("llama", "mistral", "gemma2")},
    "gpt_oss": gpt_oss,
    "llama_of_headdim_64": llama_of_headdim_64,
    **ENCODERS,
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    tandem.hf.register()
    tandem.hf.reset_call_count()


def on_gpu(inputs: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if value is None else value.to(DEVICE) for name, value in inputs.items()}


@torch.inference_mode()
def run(model: Any, implementation: str, dtype: torch.dtype, **inputs: Any) -> Tensor:
    model.set_attn_implementation(implementation)
    output = last_hidden(model.to(dtype)(**inputs))
    mask = inputs["attention_mask"]
    return (output if mask is None else output[mask.bool()]).double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_logits(name: str, side: str, dtype: torch.dtype) -> None:
    """No further from the model in fp32 than twice its eager attention of the same type is."""
    model = build(MODELS[name]).to(DEVICE).to(dtype)
    inputs = {"input_ids": tokens(length=60), "attention_mask": padding(side, length=60)}
    if name not in ENCODERS:
        inputs["position_ids"] = position_ids(inputs["attention_mask"])
    inputs = on_gpu(inputs)
    got = run(model, "tandem", dtype, **inputs)
    assert tandem.hf.call_count() == model.config.num_hidden_layers
    rough = run(model, "eager", dtype, **inputs)
    exact = run(model, "eager", torch.float32, **inputs)
    allowed = 2 * (rough - exact).abs().max() + 2 * torch.finfo(dtype).eps * exact.abs().max()
    assert (got - exact).abs().max() <= allowed


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_decoding_step_by_step(name: str, cache: str) -> None:
    """The logits of each generated token are those of the whole text at once."""
    model = build(MODELS[name]).to(DEVICE).half()
    model.set_attn_implementation("tandem")
    # A static cache would otherwise have the model compiled, which takes a minute.
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True, "disable_compile": True}
    prompt = tokens(2, 9).to(DEVICE)
    made = model.generate(input_ids=prompt, max_new_tokens=8, cache_implementation=cache, **options)
    with torch.inference_mode():
        whole = model(input_ids=made.sequences[:, :-1]).logits[:, 8:]
    steps = torch.stack(made.logits, 1)
    torch.testing.assert_close(steps.float(), whole.float(), rtol=0, atol=0.02 * whole.abs().max().item())


def test_compiled_model_in_one_graph() -> None:
    model = build(llama).to(DEVICE).bfloat16()
    model.set_attn_implementation("tandem")
    inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": padding("left")}
    inputs = {**on_gpu({**inputs, "position_ids": position_ids(inputs["attention_mask"])}), "use_cache": False}
    torch._dynamo.reset()
    with torch.inference_mode():
        expected = model(**inputs).logits
        got = torch.compile(model, backend="aot_eager", fullgraph=True)(**inputs).logits
    seen = inputs["attention_mask"].bool()
    torch.testing.assert_close(got[seen], expected[seen])


@pytest.mark.parametrize("side", ["none", "right"])
def test_training_step(side: str) -> None:
    """Gradients no further from those of the model in fp32 than twice its eager attention's are."""
    inputs = {"input_ids": tokens(length=60), "attention_mask": padding(side, length=60)}
    inputs = on_gpu({**inputs, "position_ids": position_ids(inputs["attention_mask"])})
    labels = inputs["input_ids"]
    if inputs["attention_mask"] is not None:
        labels = labels.masked_fill(inputs["attention_mask"] == 0, -100)

    weights = build(llama).to(DEVICE).bfloat16()

    def gradients(implementation: str, dtype: torch.dtype) -> list[Tensor]:
        model = copy.deepcopy(weights).to(dtype)
        model.set_attn_implementation(implementation)
        model(**inputs, labels=labels, use_cache=False).loss.backward()
        return [parameter.grad.double() for parameter in model.parameters()]

    got, rough, exact = (
        gradients("tandem", torch.bfloat16),
        gradients("eager", torch.bfloat16),
        gradients("eager", torch.float32),
    )
    assert tandem.hf.call_count() > 0
    for a, b, right in zip(got, rough, exact, strict=True):
        assert (a - right).norm() <= 2 * (b - right).norm() + 2 * torch.finfo(torch.bfloat16).eps * right.norm()
