"""Lines of results: their groups, medians and ratios, and what they are held against. Needs the standard library only.

A line is a JSON object (bench/results/*.jsonl). Lines of one "run" were measured in turn in one process; runs named
NAME/1, NAME/2, ... are passes over the same cells in one process.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import subprocess
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from cells import MASKS, Cell

Record = dict[str, Any]
NEIGHBOURS = {96: (64, 128), 192: (128, 256)}  # headdims of the figures on both sides
ANCHORS = pathlib.Path(__file__).resolve().parent / "anchors.json"


def column(record: Record) -> str:
    """What a line timed: the library, and its variant where that is not the default."""
    return f"{record['library']} ({record['variant']})" if record["variant"] else record["library"]


@dataclasses.dataclass
class Measurement:
    """One cell, all passes of one process: milliseconds, and what the card gave to a plain matrix product."""

    cell: Cell
    commit: str
    gpu: str
    driver: str
    date: str
    op: str = "forward"
    passes: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)  # {column: {run: ms}}
    matmul: dict[str, float] = dataclasses.field(default_factory=dict)  # {run: TFLOPS}, in the cell's type

    def ms(self, name: str) -> float:
        return statistics.median(self.passes[name].values())

    def tflops(self, name: str) -> float:
        return self.flops() / self.ms(name) / 1e9

    def flops(self) -> float:
        return self.cell.flops(self.op)

    def ratio(self, name: str) -> float | None:
        """The other's time over ours, each pass against itself; the median of the passes."""
        ours, theirs = self.passes["tandem"], self.passes.get(name, {})
        ratios = [theirs[run] / ours[run] for run in ours if run in theirs]
        return statistics.median(ratios) if ratios else None

    def matmul_tflops(self) -> float | None:
        return statistics.median(self.matmul.values()) if self.matmul else None


Found = dict[Cell, Measurement]


def commit() -> str:
    """Of what is measured; "unknown" where there is no git to ask."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(git, cwd=ANCHORS.parent, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        found = ""
    return found or "unknown"


def by_process(records: Iterable[Record], op: str = "forward") -> dict[str, Found]:
    """Of each process, in their order, the cells in which it timed Tandem's `op`."""
    processes: dict[str, Found] = {}
    matmul: dict[tuple[str, bool], float] = {}
    for record in records:
        if record["op"] == "matmul":
            matmul[record["run"], record.get("dtype") == "e4m3"] = record["tflops"]
        elif record["op"] == op:
            cell, process = Cell.of_record(record), record["run"].rpartition("/")[0]
            where = {field: record[field] for field in ("commit", "gpu", "driver", "date")}
            group = processes.setdefault(process, {}).setdefault(cell, Measurement(cell, op=op, **where))
            group.passes.setdefault(column(record), {})[record["run"]] = record["ms"]
    for process, found in processes.items():
        processes[process] = {cell: group for cell, group in found.items() if "tandem" in group.passes}
        for group in found.values():
            fp8 = group.cell.dtype == "e4m3"
            group.matmul = {run: matmul[run, fp8] for run in group.passes.get("tandem", {}) if (run, fp8) in matmul}
    return processes


def last_of_each(processes: Iterable[Found]) -> Found:
    kept: Found = {}
    for found in processes:
        kept |= found
    return kept


class Anchors:
    """What others gave on another day (anchors.json), brought to a run by what cuDNN gives in it."""

    def __init__(self, path: pathlib.Path = ANCHORS):
        self.figures = json.loads(path.read_text(encoding="utf-8"))

    def tflops(self, cell: Cell, name: str, op: str = "forward") -> float | None:
        if op == "forward_backward":  # one after the other
            rates = {part: self.tflops(cell, name, part) for part in ("forward", "backward")}
            times = [cell.flops(part) / rate for part, rate in rates.items() if rate]
            return cell.flops(op) / sum(times) if len(times) == len(rates) else None
        fp8 = cell.dtype == "e4m3" and name != "cudnn"
        rows = self.figures[f"{op} e4m3" if fp8 else op].get(f"{cell.headdim} {cell.mask}")
        plain = cell.dtype in ("bf16", "e4m3") and not cell.packed and cell.headdim == cell.headdim_v
        hidden = cell.nheads_q * cell.headdim == cell.nheads_k * cell.headdim == 2048
        if rows is None or not plain or not hidden or cell.seqlen not in self.figures["seqlens"]:
            return None
        return rows[name][self.figures["seqlens"].index(cell.seqlen)]

    def ratio(self, measured: Measurement, name: str) -> float | None:
        """Our speed over what `name` would give here, by what cuDNN in bf16 gives here and gave there. A goal above the
        card's own matrix product is that product."""
        there, cudnn_there = (self.tflops(measured.cell, one, measured.op) for one in (name, "cudnn"))
        to_cudnn = measured.ratio("cudnn (bf16)" if measured.cell.dtype == "e4m3" else "cudnn")
        if there is None or cudnn_there is None or to_cudnn is None:
            return None
        ratio = to_cudnn * cudnn_there / there
        limit = measured.matmul_tflops()
        return max(ratio, measured.tflops("tandem") / limit) if name == "goal" and limit else ratio


def shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def compact_table(found: Found, anchors: Anchors) -> str:
    """A line a cell: our TFLOPS, and our speed over that of each other library."""
    others = [name for name in dict.fromkeys(n for group in found.values() for n in group.passes) if name != "tandem"]
    header = (
        f"{'cell':34} {'tandem':>6} "
        + " ".join(f"{'/' + name:>10}" for name in others)
        + f" {'/FA3*':>6} {'/goal*':>6}"
    )
    lines = [header]
    for cell, group in found.items():
        ratios = " ".join(f"{shown(group.ratio(name)):>10}" for name in others)
        scaled = f"{shown(anchors.ratio(group, 'fa3')):>6} {shown(anchors.ratio(group, 'goal')):>6}"
        lines.append(f"{cell.name:34} {group.tflops('tandem'):6.0f} {ratios} {scaled}")
    for name in others:
        ratios = [ratio for group in found.values() if (ratio := group.ratio(name)) is not None]
        if ratios:
            ahead = sum(ratio >= 1 for ratio in ratios)
            mean = statistics.geometric_mean(ratios)
            lines.append(f"tandem/{name}: {ahead} of {len(ratios)} cells at 1.0 or more, from {min(ratios):.3f},"
                         f" geometric mean {mean:.3f}")  # fmt: skip
    lines.append("* scaled by what cuDNN gives here and gave there (bench/anchors.json)")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Relation:
    """Our speed in one cell over that in others, which it should reach."""

    kind: str
    cell: Cell
    to: str
    ratio: float
    wanted: float


def relations(found: Found) -> list[Relation]:
    """Of one process: rates of two do not compare."""
    result = []
    for cell, group in found.items():
        for kind, others, wanted in _relatives(cell, found):
            ratios = []
            for run, ms in group.passes["tandem"].items():
                rates = [found[other].flops() / found[other].passes["tandem"][run] for other in others]
                ratios.append(group.flops() / ms / _on_line(cell.headdim, [other.headdim for other in others], rates))
            names = " and ".join(other.name for other in others)
            result.append(Relation(kind, cell, names, statistics.median(ratios), wanted))
    return result


def _relatives(cell: Cell, found: Collection[Cell]) -> Iterator[tuple[str, list[Cell], float]]:
    """(kind, the cells it is held against, the least ratio)."""
    change = dataclasses.replace
    candidates = [
        (cell.dtype == "fp16", "fp16 to bf16", change(cell, dtype="bf16"), 0.97),
        (cell.packed, "packed to dense", change(cell, packed=False), 0.95),
        (cell.nheads_k < cell.nheads_q, "grouped heads to single ones", change(cell, nheads_k=cell.nheads_q), 1.0),
        (cell.mask not in MASKS, "mask to none, by tiles touched", change(cell, mask="none"), 0.85),
    ]
    for applies, kind, other, wanted in candidates:
        if applies and other in found:
            yield kind, [other], wanted
    if cell.headdim in NEIGHBOURS and cell.headdim == cell.headdim_v:
        neighbours = [_with_headdim(cell, headdim, found) for headdim in NEIGHBOURS[cell.headdim]]
        if all(neighbours):
            yield "headdim to the line between its neighbours", neighbours, 0.9


def _with_headdim(cell: Cell, headdim: int, found: Collection[Cell]) -> Cell | None:
    """The cell of that headdim whose heads make the most similar hidden size."""

    def kept(one: Cell) -> tuple[Any, ...]:
        return one.mask, one.seqlen, one.dtype, one.packed, one.nheads_q == one.nheads_k

    like = [one for one in found if one.headdim == one.headdim_v == headdim and kept(one) == kept(cell)]
    return min(like, key=lambda one: abs(one.nheads_q * headdim - cell.nheads_q * cell.headdim), default=None)


def _on_line(at: int, places: list[int], values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    share = (at - places[0]) / (places[1] - places[0])
    return values[0] + share * (values[1] - values[0])


def relation_table(found: Found) -> str:
    lines = []
    for relation in relations(found):
        fault = "" if relation.ratio >= relation.wanted else f"  below {relation.wanted}"
        lines.append(f"{relation.kind}: {relation.cell.name} / {relation.to} = {relation.ratio:.3f}{fault}")
    return "\n".join(lines)
