"""The masks of transformers as row intervals: query row i sees the keys [lo, hi).

An interval mask is an int32 tensor (batch or 1, heads or 1, q_length, 2) of lo and hi, which count from the first key
that the layer gets. transformers hands masks with four axes through as they are, so this one reaches every layer,
through checkpointing, compilation and ``generate``; its type tells it from masks of booleans and of floats.
"""

# mypy: untyped-calls-exclude=torch
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from tandem.errors import UnsupportedError

MaskFunction = Callable[..., Any]
Interval = tuple[Tensor, Tensor]

_SEARCH_ELEMENTS = 1 << 24  # booleans of one block of rows in the search for intervals
_HIDDEN = -1e9  # additive masks hide with -inf, with the smallest number of their type, or with -1e9
_HOLES = (
    "the attention mask shows some row keys that are not one interval, which attn_implementation='tandem' cannot "
    "express; use 'sdpa' or 'eager' for this model or mask"
)


def is_interval_mask(mask: Tensor) -> bool:
    return mask.dtype == torch.int32 and mask.ndim == 4 and mask.shape[-1] == 2


def require(condition: Tensor, message: str) -> None:
    """Raises unless all of the condition holds. On CUDA and in compiled code it fails later, but never synchronizes."""
    if condition.device.type == "cpu" and not is_tracing(condition):
        if not condition.all():
            raise UnsupportedError(message)
    else:
        torch._assert_async(condition.all(), message)


def from_visible(visible: Tensor) -> Interval:
    """lo and hi (...) of booleans (..., keys). Raises if a row's keys are not one interval."""
    keys = torch.arange(visible.shape[-1], device=visible.device)
    lo = torch.where(visible, keys, visible.shape[-1]).amin(-1)
    hi = torch.where(visible, keys + 1, 0).amax(-1)
    require(visible.sum(-1) == (hi - lo).clamp(min=0), _HOLES)
    return lo, hi


def from_dense_mask(mask: Tensor, kv_length: int) -> Interval:
    """lo and hi (batch, heads, q_length) of a boolean or additive mask (batch, heads, q_length, at least kv_length)."""
    if mask.ndim != 4 or mask.shape[-1] < kv_length:
        raise UnsupportedError(
            f"the attention mask has shape {tuple(mask.shape)}; attn_implementation='tandem' takes 2-D padding masks "
            f"through the model's forward, or 4-D ones (batch, heads, q_length, {kv_length})"
        )
    mask = mask[..., :kv_length]  # a static cache may be shorter than the mask
    if mask.dtype == torch.bool:
        return from_visible(mask)
    if not mask.is_floating_point():
        raise UnsupportedError(
            f"the 4-D attention mask has dtype {mask.dtype}; it must be boolean (True: visible) or floating (added)"
        )
    hidden = mask <= max(_HIDDEN, torch.finfo(mask.dtype).min)
    require(
        hidden | (mask == 0),
        "the 4-D attention mask adds numbers other than 0 and -inf to the scores, which attn_implementation='tandem' "
        "cannot do; use 'sdpa' or 'eager'",
    )
    return from_visible(~hidden)


def interval_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """The mask function of "tandem", with the arguments of transformers' own (see its ``sdpa_mask``).

    Returns:
        An interval mask, or None where all that the layer's ``is_causal`` says is the whole mask.
    """
    padding = _padding(attention_mask, kv_length, kv_offset)
    constraints = None if use_vmap else _constraints(mask_function)
    if padding is None and constraints is not None:
        if constraints == [] and allow_is_bidirectional_skip:
            return None
        # Static caches have a tensor here, and more keys than the last row sees.
        aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
        if constraints == [_CAUSAL] and allow_is_causal_skip and aligned:
            return None

    if constraints is None:
        lo, hi = _search(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, use_vmap, device)
    else:
        rows = torch.arange(q_length, device=device) + q_offset  # positions, as those of keys, count from the start
        lo, hi = torch.full_like(rows, kv_offset), torch.full_like(rows, kv_offset + kv_length)
        for constrain in constraints:
            row_lo, row_hi = constrain(rows)
            lo = lo if row_lo is None else torch.maximum(lo, row_lo)
            hi = hi if row_hi is None else torch.minimum(hi, row_hi)
        lo, hi = lo - kv_offset, hi - kv_offset
    if padding is not None:
        first, last = from_visible(padding)
        lo, hi = torch.maximum(lo, first[:, None]), torch.minimum(hi, last[:, None])
    intervals = torch.stack(torch.broadcast_tensors(lo, hi), dim=-1).to(torch.int32)
    return intervals.reshape(-1, 1, q_length, 2).expand(batch_size, -1, -1, -1)


def _padding(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """The layer's part of the 2-D mask, (batch, kv_length); None if it hides nothing and asking costs nothing."""
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None:
        return None
    padding = padding[:, kv_offset : kv_offset + kv_length].bool()
    if padding.device.type == "cpu" and not is_tracing(padding) and padding.all():
        return None
    return padding


def _search(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    mask_function: MaskFunction,
    use_vmap: bool,
    device: torch.device | str,
) -> Interval:
    """lo and hi (batch, q_length) of a mask function that nothing is known about, by asking it for every pair."""
    block = q_length if is_tracing() else max(1, _SEARCH_ELEMENTS // max(1, batch_size * kv_length))
    intervals = []
    for start in range(0, q_length, max(1, block)):
        visible = _visible(
            mask_function,
            batch_size=batch_size,
            q_length=min(block, q_length - start),
            kv_length=kv_length,
            q_offset=q_offset + start,
            kv_offset=kv_offset,
            use_vmap=use_vmap,
            device=device,
        )
        intervals.append(from_visible(visible))
    lo, hi = zip(*intervals, strict=True)
    return torch.cat(lo, dim=-1), torch.cat(hi, dim=-1)


def _visible(mask_function: MaskFunction, **arguments: Any) -> Tensor:
    """The booleans (batch, q_length, kv_length) of a mask function."""
    mask = masking_utils.sdpa_mask(mask_function=mask_function, allow_is_causal_skip=False, **arguments)
    assert mask is not None  # skipping it is not allowed
    return mask[:, 0]


# ---------------------------------------------------------------------------------------------- known mask functions
#
# A constraint takes the positions of the rows (q_length) and gives lo and hi, (q_length) or (batch, q_length), either
# of them None if open. Each stands for one function of transformers.masking_utils and takes that one's variables.

Constraint = partial[tuple[Tensor | None, Tensor | None]]


def _causal(rows: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return None, rows + 1


def _sliding(rows: Tensor, sliding_window: int) -> tuple[Tensor, None]:
    return rows - sliding_window + 1, None


def _sliding_bidirectional(rows: Tensor, sliding_window: int) -> Interval:
    return rows - sliding_window, rows + sliding_window + 1


def _chunked(rows: Tensor, chunk_size: int, left_padding: Tensor) -> Interval:
    start = left_padding[:, None].to(rows.device)
    lo = start + (rows - start).div(chunk_size, rounding_mode="floor") * chunk_size
    return lo, lo + chunk_size


def _packed(rows: Tensor, packed_sequence_mask: Tensor) -> Interval:
    """Document numbers (batch, length), which never decrease; the rows are all of the positions."""
    numbers = packed_sequence_mask.contiguous()
    return torch.searchsorted(numbers, numbers), torch.searchsorted(numbers, numbers, right=True)


def _variables(mask_function: MaskFunction) -> dict[str, Any]:
    cells = mask_function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(mask_function.__code__.co_freevars, cells, strict=True)}


_AND = masking_utils.and_masks().__code__
_PACKED = masking_utils.packed_sequence_mask_function(torch.empty(0)).__code__
_KNOWN: dict[CodeType, Callable[..., Any]] = {
    masking_utils.sliding_window_overlay(1).__code__: _sliding,
    masking_utils.sliding_window_bidirectional_overlay(1).__code__: _sliding_bidirectional,
    masking_utils.chunked_overlay(1, torch.empty(0)).__code__: _chunked,
    _PACKED: _packed,
}
# Older transformers lack it and leave positions as they are, which for all but chunks comes to the same.
_REMAP = None
if hasattr(masking_utils, "remap_positions_for_packed_sequence"):
    _remap = masking_utils.remap_positions_for_packed_sequence
    _REMAP = _remap(masking_utils.causal_mask_function, torch.empty(0)).__code__


def _constraints(mask_function: MaskFunction) -> list[Constraint] | None:
    """The constraints whose intersection the mask function is; None if it holds anything unknown."""
    if mask_function is masking_utils.causal_mask_function:
        return [_CAUSAL]
    if mask_function is masking_utils.bidirectional_mask_function:
        return []
    if is_tracing():
        return None  # closures are out of reach there; the search becomes one fused loop, its booleans never stored
    if mask_function.__code__ is not _AND:
        constraint = _KNOWN.get(mask_function.__code__)
        return None if constraint is None else [partial(constraint, **_variables(mask_function))]
    parts = _variables(mask_function)["mask_functions"]
    is_packed = any(part.__code__ is _PACKED for part in parts)
    constraints: list[Constraint] = []
    for part in parts:
        more = _remapped_constraints(part) if is_packed and part.__code__ is _REMAP else _constraints(part)
        if more is None:
            return None
        constraints += more
    return constraints


def _remapped_constraints(mask_function: MaskFunction) -> list[Constraint] | None:
    """Within one document, its own positions are the row's shifted by a constant: differences stay, chunks do not."""
    constraints = _constraints(_variables(mask_function)["mask_function"])
    if constraints is None or any(constraint.func is _chunked for constraint in constraints):
        return None
    return constraints


_CAUSAL: Constraint = partial(_causal)


def forget_changed_functions() -> None:
    """Asks each known function about a small problem: one that this version of transformers defines otherwise than
    its constraint says is unknown from then on, so that its masks are searched for intervals."""
    length = 9
    examples = [
        masking_utils.sliding_window_overlay(3),
        masking_utils.sliding_window_bidirectional_overlay(2),
        masking_utils.chunked_overlay(4, torch.tensor([2])),
        masking_utils.packed_sequence_mask_function(torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, 3]])),
    ]
    for example in examples:
        constraint = _KNOWN.pop(example.__code__, None)
        if constraint is None:
            continue
        rows = torch.arange(length)
        lo, hi = constraint(rows, **_variables(example))
        visible = rows >= (torch.zeros_like(rows) if lo is None else lo).reshape(-1, length, 1)
        visible &= rows < (torch.full_like(rows, length) if hi is None else hi).reshape(-1, length, 1)
        if torch.equal(visible, _visible(example, batch_size=1, q_length=length, kv_length=length)):
            _KNOWN[example.__code__] = constraint
