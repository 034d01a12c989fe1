"""The problems that bench/compare.py times, their names, and the work that each of them is.

A name is HEADDIM:MASK:SEQLEN, then any of a dtype, HEADS_Q/HEADS_K, "packed" (sequences of equal length, by offsets):

    128:causal:4096    64:none:16384:fp16    192/128:causal:4096    128:none:2048:32/8    *:*:2048:packed

192/128: V has headdim 128. "*" stands for each value of the paper's figures. Sets of cells have names, see SETS.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

HEADDIMS = ("64", "128", "256")
MASKS = ("none", "causal")
SEQLENS = ("512", "1024", "2048", "4096", "8192", "16384")
DTYPES = ("bf16", "fp16", "e4m3")
OPS = {"forward": 1.0, "backward": 2.5, "forward_backward": 3.5}  # work, in that of the forward

WINDOW = 1024  # "window": a row sees itself and the 1023 keys before it
DOCUMENT = 2048  # "documents": a row sees the keys of its own document of this many
PREFIX_SHARE = 4  # "prefix": a row sees the first quarter of the keys, and what is causal
ALL_MASKS = (*MASKS, "window", "documents", "prefix")
TILE = 128  # masks other than none and causal count as the tiles of 128 x 128 that they touch

SETS = {  # each with the cells that its own are held against
    "smoke": "128:causal:4096,64:none:1024,256:none:2048",
    "table": "*:*:*",
    "fp16": "*:*:4096,*:*:4096:fp16",
    "gqa": "64:*:4096,64:*:4096:32/8,128:*:4096:32/32,128:*:4096:32/8,64:causal:16384,64:causal:16384:32/8",
    "headdims": "*:*:4096,96:*:4096,192:*:4096,192/128:*:4096,*:*:1024,96:*:1024,192:*:1024",
    "packed": "*:*:2048,*:*:2048:packed,128:*:8192,128:*:8192:packed",
    "fp8": "*:*:*:e4m3",
    "fp8-smoke": "64:*:4096:e4m3,128:*:4096:e4m3,256:*:4096:e4m3",
    "masks": "128:none:16384,128:window:16384,128:documents:16384,128:prefix:16384",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    headdim: int
    headdim_v: int
    mask: str
    seqlen: int
    batch: int
    nheads_q: int
    nheads_k: int
    dtype: str = "bf16"
    packed: bool = False

    @property
    def name(self) -> str:
        headdim = f"{self.headdim}" if self.headdim == self.headdim_v else f"{self.headdim}/{self.headdim_v}"
        parts = [headdim, self.mask, f"{self.seqlen}", f"{self.nheads_q}/{self.nheads_k}"]
        return ":".join(parts + [self.dtype] * (self.dtype != "bf16") + ["packed"] * self.packed)

    def row_interval(self, row: int) -> tuple[int, int]:
        """The keys that a row sees: from the first to before the second."""
        if self.mask == "window":
            return max(0, row - WINDOW + 1), row + 1
        if self.mask == "documents":
            begin = row // DOCUMENT * DOCUMENT
            return begin, min(begin + DOCUMENT, self.seqlen)
        if self.mask == "prefix":
            return 0, max(self.seqlen // PREFIX_SHARE, row + 1)
        return 0, row + 1 if self.mask == "causal" else self.seqlen

    def scores(self) -> float:
        """How many scores of one head and sequence count."""
        if self.mask in MASKS:
            return self.seqlen**2 * (0.5 if self.mask == "causal" else 1)
        return TILE**2 * sum(self._tiles(first) for first in range(0, self.seqlen, TILE))

    def _tiles(self, first: int) -> int:
        """Tiles of key columns that the rows of a tile see: neighbours overlap, so that the run has no holes."""
        intervals = [self.row_interval(row) for row in range(first, min(first + TILE, self.seqlen))]
        return -(-max(end for _, end in intervals) // TILE) - min(begin for begin, _ in intervals) // TILE

    def flops(self, op: str = "forward") -> float:
        products = 2.0 * self.batch * self.nheads_q * self.scores() * (self.headdim + self.headdim_v)
        return products * OPS[op]

    def bytes(self, op: str = "forward") -> int:
        """Each input and result once: Q, K, V, O and LSE; backward, dO and the gradients too."""
        rows = self.batch * self.seqlen
        inputs = self.nheads_q * self.headdim + self.nheads_k * (self.headdim + self.headdim_v)
        input_bytes = 1 if self.dtype == "e4m3" else 2
        forward = rows * (input_bytes * inputs + self.nheads_q * (2 * self.headdim_v + 4))
        return {"forward": 1, "backward": 2, "forward_backward": 3}[op] * forward

    def record(self) -> dict[str, Any]:
        """The fields of a line of results that say what was timed."""
        return {
            "dtype": self.dtype, "headdim": self.headdim, "headdim_v": self.headdim_v, "mask": self.mask,
            "batch": self.batch, "seqlen_q": self.seqlen, "seqlen_k": self.seqlen, "nheads_q": self.nheads_q,
            "nheads_k": self.nheads_k, "memory": "packed" if self.packed else "bshd",
        }  # fmt: skip

    @staticmethod
    def of_record(record: dict[str, Any]) -> Cell:
        return Cell(
            record["headdim"], record["headdim_v"], record["mask"], record["seqlen_q"], record["batch"],
            record["nheads_q"], record["nheads_k"], record["dtype"], record.get("memory") == "packed",
        )  # fmt: skip


def parse_cells(text: str, tokens: int = 16384, hidden: int = 2048) -> list[Cell]:
    """Names and sets, by commas. Batches make `tokens` rows, and heads fill `hidden` unless they are named."""
    names = itertools.chain.from_iterable(SETS.get(name, name).split(",") for name in text.split(","))
    cells = itertools.chain.from_iterable(_parse_name(name, tokens, hidden) for name in names)
    return list(dict.fromkeys(cells))


def _parse_name(name: str, tokens: int, hidden: int) -> Iterator[Cell]:
    headdim, mask, seqlen, *options = [*name.split(":"), "", ""] if name.count(":") < 2 else name.split(":")
    axes = [HEADDIMS if headdim == "*" else (headdim,), MASKS if mask == "*" else (mask,)]
    axes.append(SEQLENS if seqlen == "*" else (seqlen,))
    try:
        for one_headdim, one_mask, one_seqlen in itertools.product(*axes):
            yield _make_cell(one_headdim, one_mask, int(one_seqlen), options, tokens, hidden)
    except ValueError as error:
        raise ValueError(
            f"'{name}' is neither a cell (such as 128:causal:4096:fp16) nor one of {list(SETS)}"
        ) from error


def _make_cell(headdim: str, mask: str, seqlen: int, options: list[str], tokens: int, hidden: int) -> Cell:
    if mask not in ALL_MASKS:
        raise ValueError(mask)
    dim, dim_v = (int(part) for part in (headdim if "/" in headdim else f"{headdim}/{headdim}").split("/"))
    heads = f"{hidden // dim}/{hidden // dim}"
    dtype, packed = "bf16", False
    for option in options:
        if option in DTYPES:
            dtype = option
        elif option == "packed":
            packed = True
        else:
            heads = option
    nheads_q, nheads_k = (int(part) for part in heads.split("/"))
    return Cell(dim, dim_v, mask, seqlen, max(1, tokens // seqlen), nheads_q, nheads_k, dtype, packed)
