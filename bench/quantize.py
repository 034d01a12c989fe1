"""Times the quantiser beside a plain copy of as many bytes, in one process: bench/results/quantize.jsonl.

Calls rotate, after a warm-up, with the L2 cache flushed before each, timed by events around the one call; the figures
are medians. "gbps" counts each element once read (2 bytes) and once written (1); a copy of as many bytes reads and
writes half of them each. Scales shared by several blocks make the quantiser read x twice, which "gbps" does not count.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from compare import CudaTimer, HostTimer, Timer, environment, time_in_turn, warm_up
from measurements import commit
from tandem_c import Tandem, TandemError

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADDIMS = (64, 96, 128, 192, 256)
GOAL = 0.8  # of the copy's rate

Call = Callable[[], Any]


def rotary_tables(positions: int, headdim: int, device: torch.device) -> dict[str, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, headdim, 2, device=device) / headdim)
    angles = torch.arange(positions, device=device)[:, None] * frequencies
    return {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}


def scale_shape(granularity: str, batch: int, nheads: int, seqlen: int) -> tuple[int, ...]:
    shapes = {"tensor": (1,), "head": (batch, nheads), "block": (batch, nheads, -(-seqlen // 128))}
    return shapes[granularity]


# variant: (granularity, options, rotary embedding, packed)
VARIANTS: dict[str, tuple[str, dict[str, int], bool, bool]] = {
    "": ("block", {}, False, False),
    "transposed": ("block", {"transposed": 1}, False, False),
    "rotated": ("block", {"rotate": 1, "seed": 1}, False, False),
    "rotary": ("block", {}, True, False),
    "rotary, rotated": ("block", {"rotate": 1, "seed": 1}, True, False),
    "packed": ("block", {}, False, True),
    "heads": ("head", {}, False, False),
    "heads, rotated": ("head", {"rotate": 1, "seed": 1}, False, False),
    "tensor": ("tensor", {}, False, False),
}


class Cell:
    """One shape; `calls` are the quantiser's variants, and the copy."""

    def __init__(self, headdim: int, seqlen: int, arguments: argparse.Namespace, device: torch.device):
        self.headdim, self.seqlen = headdim, seqlen
        self.batch = max(arguments.tokens // seqlen, 1)
        self.nheads = max(arguments.hidden // headdim, 1)
        self.elements = self.batch * seqlen * self.nheads * headdim
        self.x = torch.randn(self.batch, seqlen, self.nheads, headdim, device=device).to(torch.bfloat16)

    def calls(self, tandem: Tandem) -> dict[str, Call]:
        bytes_copied = self.elements * 3 // 2
        source = torch.zeros(bytes_copied, dtype=torch.uint8, device=self.x.device)
        target = torch.empty_like(source)
        calls: dict[str, Call] = {"copy": lambda: target.copy_(source)}
        for variant in VARIANTS:
            calls[variant] = self.call(tandem, variant)
        return calls

    def call(self, tandem: Tandem, variant: str) -> Call:
        granularity, options, rotary, packed = VARIANTS[variant]
        device = self.x.device
        x = self.x.flatten(0, 1) if packed else self.x
        shape = tuple(x.shape)
        if "transposed" in options:
            shape = (self.batch, self.nheads, self.headdim, -(-self.seqlen // 16) * 16)
        scales = scale_shape(granularity, self.batch, self.nheads, self.seqlen)
        tensors = {
            "x": x,
            "out": torch.empty(shape, dtype=torch.float8_e4m3fn, device=device),
            "scale": torch.empty(scales, device=device),
        }
        if packed:
            tensors["cu_seqlens"] = torch.arange(self.batch + 1, dtype=torch.int32, device=device) * self.seqlen
        if rotary:
            tensors |= rotary_tables(self.seqlen, self.headdim, device)
        return tandem.prepared_call("quantize_fp8", tensors, **options)

    def record(self, name: str, times: list[float]) -> dict[str, Any]:
        is_copy = name == "copy"
        ms = statistics.median(times)
        return {
            "op": "quantize",
            "dtype": "bf16",
            "headdim": self.headdim,
            "headdim_v": self.headdim,
            "mask": "none",
            "batch": self.batch,
            "seqlen_q": self.seqlen,
            "seqlen_k": self.seqlen,
            "nheads_q": self.nheads,
            "nheads_k": self.nheads,
            "library": "torch" if is_copy else "tandem",
            "variant": name,
            "ms": round(ms, 5),
            "ms_min": round(min(times), 5),
            "ms_max": round(max(times), 5),
            "gbps": round(3 * self.elements / ms / 1e6, 1),
        }


def time_cell(cell: Cell, tandem: Tandem, timer: Timer, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    calls = cell.calls(tandem)
    for call in calls.values():
        call()
    timer.wait()
    warm_up(list(calls.values()), timer, arguments.warm_up)
    times = time_in_turn(calls, timer, arguments.reps)
    records = [cell.record(name, times[name]) for name in calls]
    copy = records[0]
    rates = ", ".join(f"{record['variant'] or 'rows'} {copy['ms'] / record['ms']:.2f}" for record in records[1:])
    print(f"headdim {cell.headdim}, seqlen {cell.seqlen}: copy {copy['gbps']} GB/s; of it: {rates}", flush=True)
    return records


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build" / "libtandem.so")
    parser.add_argument("--headdims", type=lambda text: [int(word) for word in text.split(",")], default=HEADDIMS)
    parser.add_argument("--seqlens", type=lambda text: [int(word) for word in text.split(",")], default=[4096, 16384])
    parser.add_argument("--tokens", type=int, default=65536, help="batch * seqlen")
    parser.add_argument("--hidden", type=int, default=2048, help="heads * headdim")
    parser.add_argument("--reps", type=int, default=21, help="timed calls of each in each cell and pass")
    parser.add_argument("--runs", type=int, default=3, help="passes")
    parser.add_argument("--warm-up", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument("--output", type=pathlib.Path, help="append the lines of results to this file")
    parser.add_argument("--commit", default=commit(), help="of the library, where there is no git to ask")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try out the script")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    arguments = parse_arguments(words)
    device = torch.device(arguments.device, 0 if arguments.device == "cuda" else None)
    timer: Timer = CudaTimer() if arguments.device == "cuda" else HostTimer()
    tandem = Tandem(arguments.library)
    started = datetime.datetime.now(datetime.UTC)
    where = environment(arguments)
    print(", ".join(where.values()), flush=True)
    ratios = []
    for number in range(1, arguments.runs + 1):
        common = {"run": f"quantize-{started:%Y-%m-%dT%H:%M:%SZ}/{number}", "date": f"{started:%Y-%m-%d}"} | where
        for headdim in arguments.headdims:
            for seqlen in arguments.seqlens:
                try:
                    records = time_cell(Cell(headdim, seqlen, arguments, device), tandem, timer, arguments)
                except TandemError as error:
                    print(f"headdim {headdim}: {error}")
                    return 1
                ratios += [(records[0]["ms"] / record["ms"], record) for record in records[1:]]
                if arguments.output:
                    with arguments.output.open("a", encoding="utf-8") as file:
                        file.writelines(json.dumps(common | record) + "\n" for record in records)
    for ratio, record in sorted(ratios, key=lambda each: each[0]):
        if ratio < GOAL:
            where_it_is = f"headdim {record['headdim']}, seqlen {record['seqlen_q']}, {record['variant'] or 'rows'}"
            print(f"below {GOAL} of the copy: {ratio:.2f}, {where_it_is}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
