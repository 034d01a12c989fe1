"""Interval masks against the boolean masks of transformers, and dense masks given by the caller."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
masking_utils = pytest.importorskip("transformers.masking_utils")

from torch import Tensor  # noqa: E402

import tandem  # noqa: E402
import tandem.hf  # noqa: E402
from tandem.hf import _intervals  # noqa: E402


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    tandem.hf.register()


def as_visible(mask: Tensor, kv_length: int) -> Tensor:
    key = torch.arange(kv_length)
    return (key >= mask[..., 0, None]) & (key < mask[..., 1, None])


DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2, 3, 3, 3], [0, 0, 0, 0, 0, 0, 0, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 0, 1, 2, 0, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 0, 1]])
BLOCKS = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1], [-1, -1, -1, -1, -1, 0, 0, -1, -1]])
LEFT_PADDING = torch.tensor([0, 2])


def packed(mask_function: Any) -> Any:
    return masking_utils.and_masks(
        masking_utils.remap_positions_for_packed_sequence(mask_function, POSITIONS),
        masking_utils.packed_sequence_mask_function(DOCUMENTS),
    )


KNOWN = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "sliding": masking_utils.sliding_window_causal_mask_function(3),
    "sliding_bidirectional": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunked": masking_utils.chunked_causal_mask_function(4, LEFT_PADDING),
    "packed": packed(masking_utils.causal_mask_function),
    "packed_sliding": packed(masking_utils.sliding_window_causal_mask_function(2)),
}
UNKNOWN = {
    "packed_chunked": packed(masking_utils.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.int64))),
    "blockwise": masking_utils.or_masks(
        masking_utils.causal_mask_function, masking_utils.blockwise_overlay(BLOCKS)
    ),  # blocks of image tokens see each other
    "remapped_only": masking_utils.remap_positions_for_packed_sequence(
        masking_utils.causal_mask_function, torch.arange(9).expand(2, -1)
    ),
}
PADDING = {
    "none": None,
    "left": [[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9],
    "right": [[1, 1, 1, 1, 0, 0, 0, 0, 0], [1] * 9],
    "both": [[0, 1, 1, 1, 1, 1, 1, 0, 0], [0] * 9],
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_intervals_are_the_boolean_mask(name: str, padding: str) -> None:
    mask_function = {**KNOWN, **UNKNOWN}[name]
    attention_mask = None if PADDING[padding] is None else torch.tensor(PADDING[padding], dtype=torch.bool)
    arguments: dict[str, Any] = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": mask_function}
    arguments.update(attention_mask=attention_mask, allow_is_causal_skip=False)
    expected = masking_utils.sdpa_mask(**arguments)
    mask = tandem.hf.interval_mask(**arguments)
    assert torch.equal(as_visible(mask, 9), expected)
    assert mask.shape == (2, 1, 9, 2)
    assert _intervals.is_interval_mask(mask)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["dynamic_cache", "static_cache"])
@pytest.mark.parametrize("name", ["causal", "sliding", "chunked"])
def test_intervals_behind_a_cache(name: str, as_tensor: bool) -> None:
    """Three rows from position 6 on; of the keys, those from position 2 on remain."""
    arguments: dict[str, Any] = {"batch_size": 2, "q_length": 3, "kv_length": 7, "kv_offset": 2}
    arguments.update(mask_function=KNOWN[name], q_offset=torch.tensor(6) if as_tensor else 6)
    arguments.update(attention_mask=torch.tensor([[0, 0, 0] + [1] * 6, [1] * 9], dtype=torch.bool))
    expected = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    mask = tandem.hf.interval_mask(**arguments)
    assert torch.equal(as_visible(mask, 7), expected)


def test_known_functions_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_intervals, "_search", None)
    for mask_function in KNOWN.values():
        tandem.hf.interval_mask(2, 9, 9, mask_function=mask_function)


def test_a_function_that_transformers_changed_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint that disagrees with the function that it stands for is forgotten, and the masks stay right."""
    code = masking_utils.sliding_window_overlay(3).__code__
    wrong = dict(_intervals._KNOWN)
    wrong[code] = lambda rows, sliding_window: (rows - sliding_window, None)
    monkeypatch.setattr(_intervals, "_KNOWN", wrong)
    _intervals.forget_changed_functions()
    assert code not in wrong
    assert len(wrong) == 3
    mask = tandem.hf.interval_mask(1, 9, 9, mask_function=KNOWN["sliding"])
    expected = masking_utils.sdpa_mask(1, 9, 9, mask_function=KNOWN["sliding"], allow_is_causal_skip=False)
    assert torch.equal(as_visible(mask, 9), expected)


def test_search_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_intervals, "_SEARCH_ELEMENTS", 40)  # two rows at a time
    expected = masking_utils.sdpa_mask(2, 9, 9, mask_function=UNKNOWN["blockwise"], allow_is_causal_skip=False)
    mask = tandem.hf.interval_mask(2, 9, 9, mask_function=UNKNOWN["blockwise"])
    assert torch.equal(as_visible(mask, 9), expected)


def test_search_of_a_function_that_needs_vmap() -> None:
    table = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])

    def mask_function(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx <= table[q_idx]

    mask = tandem.hf.interval_mask(1, 9, 9, mask_function=mask_function, use_vmap=True)
    assert torch.equal(mask[0, 0, :, 1], (table + 1).clamp(max=9).int())


def test_no_mask_where_is_causal_says_it_all() -> None:
    everything = torch.ones(2, 9, dtype=torch.bool)
    assert tandem.hf.interval_mask(2, 9, 9, attention_mask=everything) is None
    assert tandem.hf.interval_mask(2, 3, 9, q_offset=6) is None
    assert tandem.hf.interval_mask(2, 1, 9, q_offset=4) is not None  # keys after the row
    arguments: dict[str, Any] = {"mask_function": masking_utils.bidirectional_mask_function}
    arguments.update(allow_is_causal_skip=False)
    assert tandem.hf.interval_mask(2, 9, 9, **arguments) is not None
    assert tandem.hf.interval_mask(2, 9, 9, **arguments, allow_is_bidirectional_skip=True) is None


def test_holes_are_refused_in_words() -> None:
    holes = torch.tensor([[1, 1, 0, 1]], dtype=torch.bool)
    with pytest.raises(tandem.UnsupportedError, match="not one interval"):
        tandem.hf.interval_mask(1, 4, 4, attention_mask=holes)
    with pytest.raises(tandem.UnsupportedError, match="not one interval"):
        tandem.hf.interval_mask(
            1, 4, 4, mask_function=lambda batch_idx, head_idx, q_idx, kv_idx: (q_idx + kv_idx) % 2 == 0
        )


def test_holes_are_refused_by_compiled_code_when_it_runs() -> None:
    compiled = torch.compile(_intervals.from_visible, fullgraph=True, backend="aot_eager")
    lo, hi = compiled(torch.tensor([[False, True, True]]))
    assert (lo.item(), hi.item()) == (1, 3)
    with pytest.raises(RuntimeError, match="not one interval"):
        compiled(torch.tensor([[True, False, True]]))


# -------------------------------------------------------------------------------------------------------- dense masks


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8))  # (batch, heads, length, headdim)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def attend(mask: Tensor | None, is_causal: bool = False, **options: Any) -> Tensor:
    layer = torch.nn.Module()
    out, weights = tandem.hf.attention_forward(layer, *inputs(), mask, is_causal=is_causal, **options)
    assert weights is None
    return out


def expected(additive: Tensor) -> Tensor:
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(*inputs(), attn_mask=additive[..., :6], enable_gqa=True).transpose(1, 2)


INTERVALS = torch.tensor([[0, 6], [1, 4], [2, 3], [0, 1], [3, 6]], dtype=torch.int32)


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min, -1e9])
@pytest.mark.parametrize("shape", [(2, 1, 5, 6), (1, 4, 5, 6), (2, 4, 5, 8), (2, 1, 1, 6)])
def test_dense_masks_are_honoured(shape: tuple[int, ...], hidden: float) -> None:
    visible = as_visible(INTERVALS, shape[-1])[: shape[-2]].expand(shape).clone()
    visible[0, 0, -1] = as_visible(torch.tensor([1, 3]), shape[-1])  # batches and heads differ
    additive = torch.where(visible, 0.0, hidden)
    for mask in (visible, additive):
        torch.testing.assert_close(attend(mask), expected(additive))


def test_C61_a_row_that_sees_nothing() -> None:
    visible = as_visible(INTERVALS, 6).expand(2, 1, 5, 6).clone()
    visible[1, 0, 2] = False
    out = attend(visible)
    assert torch.equal(out[1, 2], torch.zeros_like(out[1, 2]))
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.tensor([True, False, True, True, True, True]).expand(2, 1, 5, 6), "not one interval"),
        (torch.full((2, 1, 5, 6), 0.5), "numbers other than 0 and -inf"),
        (torch.ones(2, 1, 5, 6, dtype=torch.int64), "dtype torch.int64"),
        (torch.ones(2, 6, dtype=torch.bool), r"shape \(2, 6\)"),
        (torch.ones(2, 1, 5, 4, dtype=torch.bool), r"shape \(2, 1, 5, 4\)"),
        ("a BlockMask", "is a str"),
    ],
)
def test_C61_other_masks_are_refused_in_words(mask: Any, words: str) -> None:
    with pytest.raises(tandem.UnsupportedError, match=words):
        attend(mask)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout": 0.1}, "dropout is 0.1"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"block_table": torch.zeros(1)}, "block_table"),
        ({"sinks": torch.zeros(4)}, "sinks"),
        ({"sliding_window": 3}, "bidirectional sliding window"),
    ],
)
def test_what_would_be_ignored_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(tandem.UnsupportedError, match=words):
        attend(None, **options)


def test_without_a_mask_the_window_comes_from_the_layer() -> None:
    rows, keys = torch.arange(5)[:, None] + 1, torch.arange(6)
    visible = (keys <= rows) & (keys > rows - 3)
    out = attend(None, is_causal=True, sliding_window=3)
    torch.testing.assert_close(out, expected(torch.where(visible, 0.0, -math.inf).expand(2, 1, 5, 6)))


def test_offsets_of_packed_sequences() -> None:
    query, key, value = (torch.randn(1, heads, 9, 8) for heads in (4, 2, 2))
    cu = torch.tensor([0, 2, 9], dtype=torch.int32)
    out, _ = tandem.hf.attention_forward(
        torch.nn.Module(), query, key, value, None, is_causal=True, cu_seq_lens_q=cu, cu_seq_lens_k=cu
    )
    for start, end in ((0, 2), (2, 9)):
        one = [t[:, :, start:end] for t in (query, key, value)]
        right = torch.nn.functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)
        torch.testing.assert_close(out[:, start:end], right.transpose(1, 2))
