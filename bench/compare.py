#!/usr/bin/env python3
"""Times Tandem's forward on a GPU against the best others, in turn in one process.

    python bench/compare.py --library build/libtandem.so --output bench/results/forward.jsonl
    python bench/compare.py --cells 128:causal:4096,masks --libraries tandem,cudnn,flex --reps 9 --runs 1

Protocol: for each cell all libraries run in turn for half a second; then each is called --reps times, in an order that
rotates, with the L2 cache flushed before each call, and timed by events around the one call. The figures are medians.
--runs passes over all cells follow each other in the process. In the first, rows of each output are held against the
definition of attention.

Libraries: tandem (through libtandem.so); cudnn and fa2 (PyTorch's scaled_dot_product_attention held to one backend);
fa3 (flash_attn_interface), flex (FlexAttention, compiled), cudnn-graph (the package nvidia-cudnn-frontend); torch (its
own choice); --other: a shared library with the function that SharedObject in bench/libraries.py shows. Those that are
not installed are left out. Cells and sets of them: bench/cells.py.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from cells import SETS, Cell, parse_cells
from libraries import (
    Call,
    CudnnGraph,
    Data,
    FlashAttention3,
    FlexAttention,
    Library,
    Sdpa,
    SharedObject,
    TandemC,
    TandemTorch,
    TorchFlash,
)
from measurements import Anchors, Record, by_process, column, commit, compact_table, relation_table
from torch.nn.attention import SDPBackend

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLUSH_BYTES = 1 << 30  # 20 times the L2 of an H200; its quarter of a millisecond also hides the host's part of a call
TOLERANCE = {"bf16": 1e-2, "fp16": 2e-3}  # four times and more what rounding makes
CHECKED_ROWS = 64
MATMUL_SIZE = 8192


class CudaTimer:
    def __init__(self, flush_bytes: int = FLUSH_BYTES):
        self.flushed = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda")
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def wait(self) -> None:
        torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], Any]) -> float:
        self.flushed.zero_()
        self.begin.record()
        call()
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end)


class HostTimer:
    """For the CPU, on which only the script itself is tried out: bench/cpu_compare.py times the CPU backend."""

    def wait(self) -> None:
        pass

    def milliseconds(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3


Timer = CudaTimer | HostTimer


def warm_up(calls: list[Callable[[], Any]], timer: Timer, seconds: float) -> None:
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for call in calls:
            call()
        timer.wait()


def time_in_turn(calls: dict[str, Callable[[], Any]], timer: Timer, reps: int) -> dict[str, list[float]]:
    """Milliseconds of each call. Every repetition begins with another library."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()
    for rep in range(reps):
        first = rep % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(timer.milliseconds(calls[name]))
    gc.enable()
    return times


def error_of(out: torch.Tensor, data: Data) -> float:
    """Against the definition, in double, for some rows of two heads: norm of the difference over the norm."""
    cell = data.cell
    rows = sorted({*range(0, cell.seqlen, max(1, cell.seqlen // CHECKED_ROWS)), cell.seqlen - 1})
    keys = torch.arange(cell.seqlen, device=out.device)
    seen = (keys >= data.lo[0, 0, rows, None]) & (keys < data.hi[0, 0, rows, None])
    differences, values = [], []
    for batch, head in {(0, 0), (cell.batch - 1, cell.nheads_q - 1)}:
        key_head = head // (cell.nheads_q // cell.nheads_k)
        q, k, v, found = (
            x.reshape(cell.batch, cell.seqlen, *x.shape[-2:])[batch, :, h].double()
            for x, h in ((data.q, head), (data.k, key_head), (data.v, key_head), (out, head))
        )
        scores = (q[rows] @ k.T / cell.headdim**0.5).masked_fill(~seen, -torch.inf)
        values.append(scores.softmax(-1) @ v)
        differences.append(found[rows] - values[-1])
    return (torch.stack(differences).norm() / torch.stack(values).norm()).item()


class Bench:
    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.device = torch.device(arguments.device, 0 if arguments.device == "cuda" else None)
        self.timer: Timer = CudaTimer() if arguments.device == "cuda" else HostTimer()
        self.libraries = make_libraries(arguments)
        self.records: list[Record] = []
        self.faults: list[str] = []
        self.refused: set[tuple[str, str]] = set()
        self.environment = environment(arguments)

    def run(self) -> None:
        started = datetime.datetime.now(datetime.UTC)
        for number in range(1, self.arguments.runs + 1):
            common = {"run": f"forward-{started:%Y-%m-%dT%H:%M:%SZ}/{number}", "date": f"{started:%Y-%m-%d}"}
            common |= self.environment
            if self.device.type == "cuda":
                self.keep([common | self.matmul()])
            for cell in self.arguments.cells:
                self.keep([common | line for line in self.time_cell(cell, check=number == 1)])

    def keep(self, records: list[Record]) -> None:
        self.records += records
        if self.arguments.output:
            with self.arguments.output.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)

    def matmul(self) -> Record:
        """What the card gives to a plain matrix product at this moment: no kernel here can be faster."""
        a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        warm_up([lambda: a @ b], self.timer, self.arguments.warm_up)
        ms = statistics.median(self.timer.milliseconds(lambda: a @ b) for _ in range(self.arguments.reps))
        tflops = round(2 * MATMUL_SIZE**3 / ms / 1e9, 1)
        print(f"matrix product ({MATMUL_SIZE}^3, bf16, cuBLAS): {tflops} TFLOPS", flush=True)
        return {"op": "matmul", "dtype": "bf16", "library": "cublas", "variant": "", "ms": ms, "tflops": tflops}

    def time_cell(self, cell: Cell, check: bool) -> list[Record]:
        calls = self.prepare(cell, check)
        if not calls:
            return []
        warm_up(list(calls.values()), self.timer, self.arguments.warm_up)
        times = time_in_turn(calls, self.timer, self.arguments.reps)
        records = [record(cell, library, times[key(library)]) for library in self.libraries if key(library) in times]
        rates = "  ".join(f"{column(one)} {one['tflops']:.4g}" for one in records)
        print(f"{cell.name:34} {rates}", flush=True)
        return records

    def prepare(self, cell: Cell, check: bool) -> dict[str, Call]:
        """A call of each library that can; those that give something else are named in self.faults."""
        data = Data.make(cell, self.device)
        calls: dict[str, Call] = {}
        for library in self.libraries:
            try:
                with warnings.catch_warnings(action="ignore"):  # PyTorch's reasons for not having a kernel
                    call = library.prepare(data)
                    out = call()
                self.timer.wait()
            except Exception as error:  # each library has its own
                self.timer.wait()  # raises if the device itself has failed
                self.refuse(library, cell, str(error).strip().splitlines())
                continue
            calls[key(library)] = call
            if check and not (error := error_of(out, data)) <= TOLERANCE[cell.dtype]:
                self.faults.append(f"{cell.name}: {key(library)} is off by {error:.2e}")
                print(f"WRONG  {self.faults[-1]}", flush=True)
        return calls

    def refuse(self, library: Library, cell: Cell, reason: list[str]) -> None:
        if (key(library), cell.name) not in self.refused:
            self.refused.add((key(library), cell.name))
            print(f"{cell.name}: not by {key(library)}: {reason[0][:160] if reason else 'no reason given'}", flush=True)


def key(library: Library) -> str:
    return column({"library": library.name, "variant": library.variant})


def summary(library: Library, times: list[float]) -> Record:
    figures = {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}
    rounded = {name: round(value, 5) for name, value in figures.items()}
    return {"library": library.name, "variant": library.variant, **rounded}


def record(cell: Cell, library: Library, times: list[float]) -> Record:
    line = {"op": "forward"} | cell.record() | summary(library, times)
    line["tflops"] = round(cell.flops() / line["ms"] / 1e9, 4)
    line["gbps"] = round(cell.forward_bytes() / line["ms"] / 1e6, 1)
    return line


OTHERS: dict[str, Callable[[], Library]] = {
    "cudnn": lambda: Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION),
    "fa2": TorchFlash,
    "fa3": FlashAttention3,
    "cudnn-graph": CudnnGraph,
    "flex": FlexAttention,
    "torch": lambda: Sdpa("torch"),
}


def make_libraries(arguments: argparse.Namespace) -> list[Library]:
    found: list[Library] = []
    if "tandem" in arguments.libraries:
        found += [TandemC(arguments.library)] if "c" in arguments.through else []
        found += [TandemTorch()] if "torch" in arguments.through else []
    for name in arguments.libraries:
        try:
            found += [OTHERS[name]()] if name != "tandem" else []
        except (ImportError, OSError, RuntimeError) as error:
            print(f"without {name}: {error}", flush=True)
    found += [SharedObject(*other) for other in arguments.other]
    return found


def environment(arguments: argparse.Namespace) -> dict[str, str]:
    """What a line says about where it was measured."""
    versions = f"torch {torch.__version__}"
    if arguments.device == "cpu":
        return {"commit": arguments.commit, "gpu": "none", "driver": versions}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    versions += f", CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return {"commit": arguments.commit, "gpu": torch.cuda.get_device_name(0), "driver": f"{driver}, {versions}"}


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build" / "libtandem.so")
    parser.add_argument("--through", default="c", help="c (libtandem.so), torch (tandem.torch), or c,torch")
    parser.add_argument("--cells", default="table", help=f"cells and sets, by commas; sets: {', '.join(SETS)}")
    parser.add_argument("--libraries", default="tandem,cudnn,fa2,fa3", help="by commas")
    parser.add_argument("--other", nargs=3, action="append", default=[], metavar=("LIBRARY", "VARIANT", "FILE"))
    parser.add_argument("--reps", type=int, default=21, help="timed calls of each library in each cell and pass")
    parser.add_argument("--runs", type=int, default=3, help="passes")
    parser.add_argument("--warm-up", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument("--output", type=pathlib.Path, help="append the lines of results to this file")
    parser.add_argument("--commit", default=commit(), help="of the library, where there is no git to ask")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try out the script")
    parser.add_argument("--tokens", type=int, default=16384, help="batch * seqlen")
    parser.add_argument("--hidden", type=int, default=2048, help="heads * headdim")
    arguments = parser.parse_args(words)
    arguments.libraries = arguments.libraries.split(",")
    arguments.through = arguments.through.split(",")
    if unknown := set(arguments.libraries) - {"tandem", *OTHERS}:
        parser.error(f"unknown libraries: {', '.join(sorted(unknown))}")
    try:
        arguments.cells = parse_cells(arguments.cells, arguments.tokens, arguments.hidden)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main(words: list[str] | None = None) -> int:
    start = time.perf_counter()
    bench = Bench(parse_arguments(words))
    print(", ".join(bench.environment.values()), flush=True)
    with torch.no_grad():
        bench.run()
    for found in by_process(bench.records).values():
        print(f"\n{compact_table(found, Anchors())}\n{relation_table(found)}")
    for fault in bench.faults:
        print(f"WRONG  {fault}")
    print(f"{time.perf_counter() - start:.0f} s")
    return 1 if bench.faults else 0


if __name__ == "__main__":
    sys.exit(main())
