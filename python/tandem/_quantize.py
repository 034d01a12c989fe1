"""Quantisation to fp8 for NumPy arrays and for everything that speaks DLPack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from tandem._arrays import integers, operand
from tandem._call import DENSE_AXES, PACKED_AXES, Call, Result, quantize
from tandem._options import read_options
from tandem.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem._arrays import Array

    Lengths = Array | Sequence[int]

Granularity = Literal["tensor", "head", "block"]

BLOCK_ROWS = 128  # of a sequence
_SLOT_GROUP = 16  # of V^T


def result_shapes(
    shape: tuple[int, ...], batch: int | None, granularity: Granularity, transposed: bool, max_seqlen: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of out and scale for x of `shape`; `batch` is the number of packed sequences, or None.

    Without `max_seqlen`, a packed sequence has as many blocks as all rows together would.
    """
    if granularity not in get_args(Granularity):
        allowed = ", ".join(map(repr, get_args(Granularity)))
        raise InvalidArgumentError(f"granularity is {granularity!r}; allowed: {allowed}")
    axes = DENSE_AXES if batch is None else PACKED_AXES
    if len(shape) != len(axes):
        raise InvalidArgumentError(f"x has shape {shape}; it needs {len(axes)} axes ({', '.join(axes)})")
    *entries, rows, heads, columns = shape
    slots = -(-rows // _SLOT_GROUP) * _SLOT_GROUP if batch is None else (rows // _SLOT_GROUP + batch) * _SLOT_GROUP
    out = (*entries, heads, columns, slots) if transposed else shape
    sequences = entries[0] if batch is None else batch
    longest = rows if batch is None or max_seqlen is None else max_seqlen
    blocks = -(-longest // BLOCK_ROWS)
    if batch is not None:
        blocks = max(blocks, 1)
    scales = {"tensor": (1,), "head": (sequences, heads), "block": (sequences, heads, blocks)}
    return out, scales[granularity]


def quantize_fp8(
    x: Array,
    *,
    granularity: Granularity = "block",
    rotate: bool = False,
    seed: int = 0,
    transposed: bool = False,
    cu_seqlens: Lengths | None = None,
    seqused: Lengths | None = None,
    max_seqlen: int | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_offset: Lengths | None = None,
    rotary_interleaved: bool = False,
    backend: str | None = None,
    num_threads: int | None = None,
    checked: bool = False,
) -> tuple[Result, Result]:
    """Rounds q, k or v to float8_e4m3fn, with scales for `attention`: x is about ``out * scale``.

    Args:
        x: (batch, seqlen, nheads, headdim), with cu_seqlens (total, nheads, headdim); float32, float16 or bfloat16.
        granularity: which rows share a scale: those of the whole "tensor", of a (sequence, "head"), or a "block" of
            128 rows of these, counted from the start of each sequence.
        rotate: multiply rows by random signs and a Hadamard matrix, which spreads outliers. Rotate q and k with one
            seed: their products stay. headdim must be a power of two, or 12 times one; pad others with zeros (and give
            `attention` the softmax_scale of the real headdim).
        seed: of the signs; 0 to 2**63 - 1.
        transposed: for v: out is (batch, nheads, headdim, slots), packed (nheads, headdim, slots), with the keys along
            the last axis in the order that a GPU's tensor cores want; see tandem.h. `attention` takes it with
            ``v_transposed=True``.
        cu_seqlens: int32 (batch + 1) or ints: x is packed.
        seqused: int32 (batch) or ints: how many rows of each sequence count. The others are not read, and become 0.
        max_seqlen: of packed sequences: scale has blocks for this many rows. None: for as many as x has.
        rotary_cos, rotary_sin: float32 or dtype of x, (positions, rotary_dim / 2): rotary embedding of the first
            rotary_dim columns, before the rotation.
        rotary_offset: int32 (batch) or ints: position of each sequence's first row; None: 0.
        rotary_interleaved: columns (0, 1), (2, 3) ... turn together, instead of c and rotary_dim / 2 + c.
        backend, num_threads, checked: as in `attention`.

    Returns:
        (out, scale): float8_e4m3fn (ml_dtypes' NumPy type) of the shape of x or transposed; float32 (1), (batch,
        nheads) or (batch, nheads, blocks). The same on every run, and for every number of threads.

    Raises:
        As `attention`.
    """
    lengths = {"cu_seqlens": cu_seqlens, "seqused": seqused, "rotary_offset": rotary_offset}
    tables = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
    inputs = ("float32", "float16", "bfloat16")
    call = Call(
        {
            "x": operand("x", x, inputs, contiguous=True),
            **{name: integers(name, value) for name, value in lengths.items() if value is not None},
            **{name: operand(name, each, inputs, contiguous=True) for name, each in tables.items() if each is not None},
        },
        read_options(
            rotate=rotate,
            seed=seed,
            transposed=transposed,
            rotary_interleaved=rotary_interleaved,
            backend=backend,
            num_threads=num_threads,
            checked=checked,
        ),
    )
    offsets = call.operands.get("cu_seqlens")
    batch = None if offsets is None else max(offsets.shape[0] - 1, 0)
    longest = read_options(max_seqlen_k=max_seqlen).get("max_seqlen_k")
    return quantize(call, *result_shapes(call.operands["x"].shape, batch, granularity, transposed, longest))
