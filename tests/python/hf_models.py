"""Small models of transformers with random weights, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DECODER: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "eos_token_id": None, "bos_token_id": None}
SLIDING: dict[str, Any] = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}


def llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**DECODER, **options)


def mistral() -> Any:
    return transformers.MistralForCausalLM, transformers.MistralConfig(**DECODER, sliding_window=4)


def gemma2() -> Any:
    options = {"head_dim": 8, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 2}
    return transformers.Gemma2ForCausalLM, transformers.Gemma2Config(**DECODER, **SLIDING, **options)


def gpt_oss() -> Any:
    options = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    return transformers.GptOssForCausalLM, transformers.GptOssConfig(**DECODER, **SLIDING, **options)


def llama4() -> Any:
    options = {"head_dim": 8, "attention_chunk_size": 4, "intermediate_size_mlp": 48, "num_local_experts": 2}
    config = transformers.Llama4TextConfig(
        **DECODER, **options, layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0]
    )
    return transformers.Llama4ForCausalLM, config


def bert() -> Any:
    return transformers.BertModel, transformers.BertConfig(**SIZES, attention_probs_dropout_prob=0.0)


def modernbert() -> Any:
    config = transformers.ModernBertConfig(
        **SIZES, local_attention=6, global_attn_every_n_layers=2, attention_dropout=0.0, bos_token_id=1, eos_token_id=2
    )
    return transformers.ModernBertModel, config


DECODERS = {f.__name__: f for f in (llama, mistral, gemma2, gpt_oss, llama4)}
ENCODERS = {f.__name__: f for f in (bert, modernbert)}


def build(make: Callable[[], Any]) -> Any:
    model_class, config = make()
    model = model_class._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():  # the usual 0.02 would leave attention nearly uniform
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
        elif parameter.shape == (4,):  # sinks
            torch.nn.init.normal_(parameter)
    return model


def tokens(batch: int = 3, length: int = 11) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, length))


def padding(side: str, batch: int = 3, length: int = 11) -> Tensor | None:
    """The first sequence is whole; the others miss 3 and 8 tokens."""
    if side == "none":
        return None
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row, missing in ((1, 3), (2, 8)):
        mask[row, slice(0, missing) if side == "left" else slice(length - missing, None)] = 0
    return mask


def position_ids(attention_mask: Tensor | None) -> Tensor | None:
    return None if attention_mask is None else (attention_mask.cumsum(-1) - 1).clamp(min=0)


def last_hidden(outputs: Any) -> Tensor:
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state
