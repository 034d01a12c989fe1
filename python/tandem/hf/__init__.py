"""Tandem for Hugging Face transformers: attention implementation "tandem".

    import tandem.hf
    tandem.hf.register()
    model = AutoModel.from_pretrained(path, attn_implementation="tandem")

Causal, bidirectional, sliding-window, chunked and packed masks and padding on either side become row intervals: no
(q_length, kv_length) mask is stored, nothing is unpadded, and no call waits for a GPU. Grouped heads are not repeated;
soft caps and sinks are supported. What attention in Tandem cannot express is refused in words, never ignored.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils import logging

from tandem.errors import UnsupportedError
from tandem.hf._fp8 import Fp8
from tandem.hf._intervals import forget_changed_functions, from_dense_mask, interval_mask, is_interval_mask
from tandem.torch import attention, attention_varlen
from tandem.torch._typing import AttentionOptions

__all__ = ["Fp8", "attention_forward", "call_count", "interval_mask", "register", "reset_call_count"]

_logger = logging.get_logger("transformers.tandem")

# What layers of some models pass that changes the result and has no counterpart in Tandem.
_REFUSED = ("position_bias", "sinks", "indices", "block_indices", "block_table")

_calls: Counter[Any] = Counter()


def register(name: str = "tandem", *, fp8: Fp8 | None = None) -> None:
    """Makes ``attn_implementation=name`` known to transformers, for models loaded before and after. Idempotent.

    Args:
        fp8: run attention in fp8, quantising q, k and v in each call; for inference: fp8 has no gradient, and a call
            that needs one is refused. A name of its own keeps both at hand:
            ``register("tandem-fp8", fp8=tandem.hf.Fp8())``.
    """
    forget_changed_functions()
    AttentionInterface.register(name, attention_forward if fp8 is None else partial(attention_forward, fp8=fp8))
    AttentionMaskInterface.register(name, interval_mask)


def call_count(layer: int | None = None) -> int:
    """Attention calls since the last reset, of one layer (the module's ``layer_idx``) or of all. Compiled code, which
    does not come by here, is not counted."""
    return _calls.total() if layer is None else _calls[layer]


def reset_call_count() -> None:
    _calls.clear()


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    fp8: Fp8 | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function of "tandem", with the arguments of transformers' own.

    Args:
        query: (batch, heads, q_length, headdim), key and value: (batch, kv_heads, kv_length, headdim).
        attention_mask: an interval mask; or a 4-D boolean or additive one, if it hides all but one interval per row;
            or None: causal if the module is, with the keys' end aligned to the rows' end.
        s_aux: one sink logit per head.
        cu_seq_lens_q, cu_seq_lens_k: offsets of packed sequences (batch 1), used if there is no mask.
        fp8: how to quantise; None: attention in the type of the query.

    Returns:
        (batch, q_length, heads, headdim), and None for the weights, which are never computed.
    """
    _refuse_what_would_be_ignored(dropout, kwargs)
    if not torch.compiler.is_compiling():
        _calls[getattr(module, "layer_idx", None)] += 1

    options: AttentionOptions = {"softmax_scale": scaling, "softcap": softcap or 0.0}
    if s_aux is not None:
        options["sink"] = s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    if attention_mask is not None:
        options["lo"], options["hi"] = _row_intervals(attention_mask, q_length=q.shape[1], kv_length=k.shape[1])
    else:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        options["causal"] = causal
        options["window"] = _window(sliding_window, causal, max(q.shape[1], k.shape[1]))
        if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
            q, k, v = q.squeeze(0), k.squeeze(0), v.squeeze(0)
            if fp8 is not None:
                out = fp8.attention_varlen(q, k, v, cu_seq_lens_q, cu_seq_lens_k, options)
            else:
                out = attention_varlen(q, k, v, cu_seq_lens_q, cu_seq_lens_k, **options)
            return out.unsqueeze(0), None
    if fp8 is not None:
        return fp8.attention(q, k, v, options), None
    return attention(q, k, v, **options), None


def _refuse_what_would_be_ignored(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout > 0:
        raise UnsupportedError(
            f"attention dropout is {dropout}, which attn_implementation='tandem' does not have; set the attention "
            "dropout of the model's config to 0 (or call model.eval() if you do not train)"
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                f"this model passes {name} to its attention, which attn_implementation='tandem' does not support; "
                "use 'sdpa' or 'eager'"
            )
    if kwargs.get("output_attentions", False):
        _logger.warning_once(
            "`tandem` attention does not support `output_attentions=True`."
            " Please set your attention to `eager` if you want any of these features."
        )


def _row_intervals(mask: Tensor, q_length: int, kv_length: int) -> tuple[Tensor, Tensor]:
    if not isinstance(mask, Tensor):
        raise UnsupportedError(f"the attention mask is a {type(mask).__name__}; it must be a tensor or None")
    lo, hi = mask.unbind(-1) if is_interval_mask(mask) else from_dense_mask(mask, kv_length)
    if lo.shape[-1] != q_length:  # one row of the mask serves all
        lo, hi = lo.expand(-1, -1, q_length), hi.expand(-1, -1, q_length)
    return lo.to(torch.int32), hi.to(torch.int32)


def _window(sliding_window: int | None, causal: bool, length: int) -> tuple[int, int]:
    if sliding_window is None or length <= sliding_window:
        return (-1, -1)
    if not causal:
        # Models differ in whether this counts the row's own key; their masks, where they make one, say it exactly.
        raise UnsupportedError("a bidirectional sliding window needs the model to pass its attention mask")
    return (sliding_window - 1, 0)
