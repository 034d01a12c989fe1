#!/usr/bin/env python3
"""Times Tandem's forward and backward on a GPU against the best others, in turn in one process.

    python bench/compare.py --library build/libtandem.so --output bench/results/forward.jsonl
    python bench/compare.py --cells 128:causal:4096,masks --libraries tandem,cudnn,flex --reps 9 --runs 1
    python bench/compare.py --ops backward,forward_backward --deterministic --output bench/results/backward.jsonl

Protocol: for each cell all libraries run in turn for half a second; then each is called --reps times, in an order that
rotates, with the L2 cache flushed before each call, and timed by events around the one call. The figures are medians.
--runs passes over all cells follow each other in the process. In the first, rows of each output and gradient are held
against the definition of attention. A backward is all that a library launches for the gradients, from an O and an LSE
that are there.

Libraries: tandem (through libtandem.so); cudnn and fa2 (PyTorch's scaled_dot_product_attention held to one backend);
fa3 (flash_attn_interface), flex (FlexAttention, compiled), cudnn-graph (the package nvidia-cudnn-frontend); torch (its
own choice); --other: a shared library with the function that SharedObject in bench/libraries.py shows. Those that are
not installed are left out. Cells and sets of them: bench/cells.py.

Cells in e4m3 (--cells fp8, or 128:causal:4096:e4m3) have libraries of their own, bench/libraries_fp8.py: Tandem in fp8
with V as the quantiser transposes it and with V in rows, and with the quantiser's time ("from bf16"); cuDNN's fp8 by
its graph API; --other with the function that SharedObjectFp8 shows; and Tandem and cuDNN in bf16 over the same values.
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
from cells import OPS, SETS, Cell, parse_cells
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
from libraries_fp8 import E4M3, OUT_SCALE, CudnnGraphFp8, FlashAttention3Fp8, InBf16, SharedObjectFp8, TandemFp8
from measurements import Anchors, Record, by_process, column, commit, compact_table, relation_table
from torch.nn.attention import SDPBackend

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLUSH_BYTES = 1 << 30  # 20 times the L2 of an H200; its quarter of a millisecond also hides the host's part of a call
TOLERANCE = {"bf16": 1e-2, "fp16": 2e-3, "e4m3": 6e-2, "from bf16": 0.15}  # twice to five times what rounding makes
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


def one_head(tensor: torch.Tensor, cell: Cell, batch: int, head: int) -> torch.Tensor:
    """In double."""
    return tensor.reshape(cell.batch, cell.seqlen, *tensor.shape[-2:])[batch, :, head].double()


def errors_of(results: tuple[torch.Tensor, ...], data: Data, op: str) -> dict[str, float]:
    """Of each result, for some rows or keys of the first and the last head: norm of the difference from the definition,
    in double, over the norm of that."""
    cell = data.cell
    names = {"forward": ("O",), "backward": ("dQ", "dK", "dV"), "forward_backward": ("O", "dQ", "dK", "dV")}[op]
    found = dict(zip(names, results, strict=True))
    differences: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    values: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for batch, key_head in {(0, 0), (cell.batch - 1, cell.nheads_k - 1)}:
        for name, right, head in definition(data, batch, key_head, gradients=op != "forward"):
            if name in found:
                rows = checked_rows(cell)
                values[name].append(right[rows])
                got = one_head(found[name], cell, batch, head)[rows]
                got = got / OUT_SCALE if found[name].dtype == E4M3 else got
                differences[name].append(got - values[name][-1])
    return {name: (torch.stack(differences[name]).norm() / torch.stack(values[name]).norm()).item() for name in names}


def checked_rows(cell: Cell) -> list[int]:
    return sorted({*range(0, cell.seqlen, max(1, cell.seqlen // CHECKED_ROWS)), cell.seqlen - 1})


def definition(data: Data, batch: int, key_head: int, gradients: bool) -> list[tuple[str, torch.Tensor, int]]:
    """(name, right values, head) of what belongs to one key head. Without gradients, O has the checked rows only."""
    cell = data.cell
    group = cell.nheads_q // cell.nheads_k
    k, v = (one_head(x, cell, batch, key_head) for x in (data.k, data.v))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    keys = torch.arange(cell.seqlen, device=k.device)
    found = []
    for head in range(key_head * group, (key_head + 1) * group):
        q, dout = (one_head(x, cell, batch, head) for x in (data.q, data.dout))
        out, dq = torch.zeros_like(dout), torch.zeros_like(q)
        chunks = torch.arange(cell.seqlen, device=k.device).split(1024) if gradients else [checked_rows(cell)]
        for rows in chunks:
            seen = (keys >= data.lo[0, 0, rows, None]) & (keys < data.hi[0, 0, rows, None])
            p = (q[rows] @ k.T / cell.headdim**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
            out[rows] = p @ v
            if gradients:
                dp = dout[rows] @ v.T
                ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / cell.headdim**0.5
                dq[rows] = ds @ k
                dk += ds.T @ q[rows]
                dv += p.T @ dout[rows]
        found += [("O", out, head), ("dQ", dq, head)]
    return [*found, ("dK", dk, key_head), ("dV", dv, key_head)]


class Bench:
    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.device = torch.device(arguments.device, 0 if arguments.device == "cuda" else None)
        self.timer: Timer = CudaTimer() if arguments.device == "cuda" else HostTimer()
        dtypes = {cell.dtype for cell in arguments.cells}
        self.libraries = make_libraries(arguments) if dtypes - {"e4m3"} else []
        self.fp8_libraries = make_fp8_libraries(arguments) if "e4m3" in dtypes else []
        self.records: list[Record] = []
        self.faults: list[str] = []
        self.refused: set[tuple[str, str, str]] = set()
        self.environment = environment(arguments)

    def run(self) -> None:
        started = datetime.datetime.now(datetime.UTC)
        for number in range(1, self.arguments.runs + 1):
            run = f"{'+'.join(self.arguments.ops)}-{started:%Y-%m-%dT%H:%M:%SZ}/{number}"
            common = {"run": run, "date": f"{started:%Y-%m-%d}"}
            common |= self.environment
            if self.device.type == "cuda":
                for dtype in ("bf16", "e4m3") if self.fp8_libraries else ("bf16",):
                    self.keep([common | self.matmul(dtype)])
            for op in self.arguments.ops:
                for cell in self.arguments.cells:
                    self.keep([common | line for line in self.time_cell(cell, op, check=number == 1)])

    def keep(self, records: list[Record]) -> None:
        self.records += records
        if self.arguments.output:
            with self.arguments.output.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)

    def matmul(self, dtype: str) -> Record:
        """What the card gives to a plain matrix product at this moment: no kernel here can be faster."""
        a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        one = torch.ones((), device=self.device)

        def in_bf16() -> torch.Tensor:
            return a @ b

        def in_e4m3() -> torch.Tensor:
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

        if dtype == "e4m3":
            a, b = a.to(E4M3), b.to(E4M3).T
        product = in_e4m3 if dtype == "e4m3" else in_bf16
        warm_up([product], self.timer, self.arguments.warm_up)
        ms = statistics.median(self.timer.milliseconds(product) for _ in range(self.arguments.reps))
        tflops = round(2 * MATMUL_SIZE**3 / ms / 1e9, 1)
        print(f"matrix product ({MATMUL_SIZE}^3, {dtype}, cuBLAS): {tflops} TFLOPS", flush=True)
        return {"op": "matmul", "dtype": dtype, "library": "cublas", "variant": "", "ms": ms, "tflops": tflops}

    def libraries_of(self, cell: Cell) -> list[Library]:
        return self.fp8_libraries if cell.dtype == "e4m3" else self.libraries

    def time_cell(self, cell: Cell, op: str, check: bool) -> list[Record]:
        calls = self.prepare(cell, op, check)
        if not calls:
            return []
        warm_up(list(calls.values()), self.timer, self.arguments.warm_up)
        times = time_in_turn(calls, self.timer, self.arguments.reps)
        timed = [library for library in self.libraries_of(cell) if key(library) in times]
        records = [record(cell, op, library, times[key(library)]) for library in timed]
        rates = "  ".join(f"{column(one)} {one['tflops']:.4g}" for one in records)
        print(f"{self.title(cell, op):34} {rates}", flush=True)
        return records

    @staticmethod
    def title(cell: Cell, op: str) -> str:
        return cell.name if op == "forward" else f"{op} {cell.name}"

    def prepare(self, cell: Cell, op: str, check: bool) -> dict[str, Call]:
        """A call of each library that can; those that give something else are named in self.faults."""
        data = Data.make(cell, self.device)
        calls: dict[str, Call] = {}
        for library in self.libraries_of(cell):
            try:
                with warnings.catch_warnings(action="ignore"):  # PyTorch's reasons for not having a kernel
                    call = library.prepare(data, op)
                    results = call()
                self.timer.wait()
            except Exception as error:  # each library has its own
                self.timer.wait()  # raises if the device itself has failed
                self.refuse(library, cell, op, str(error).strip().splitlines())
                continue
            calls[key(library)] = call
            inputs, tolerance = checked_against(library, data)
            for name, error in errors_of(results, inputs, op).items() if check else ():
                if not error <= tolerance:
                    self.faults.append(f"{self.title(cell, op)}: {key(library)} is off by {error:.2e} in {name}")
                    print(f"WRONG  {self.faults[-1]}", flush=True)
        return calls

    def refuse(self, library: Library, cell: Cell, op: str, reason: list[str]) -> None:
        if (key(library), cell.name, op) not in self.refused:
            self.refused.add((key(library), cell.name, op))
            words = reason[0][:160] if reason else "no reason given"
            print(f"{self.title(cell, op)}: not by {key(library)}: {words}", flush=True)


def checked_against(library: Library, data: Data) -> tuple[Data, float]:
    """The inputs whose attention it should have given, and the error allowed."""
    if not getattr(library, "of_bf16", False):
        return data, TOLERANCE[data.cell.dtype]
    assert data.bf16 is not None
    return data.bf16, TOLERANCE.get(library.variant, TOLERANCE["bf16"])


def key(library: Library) -> str:
    return column({"library": library.name, "variant": library.variant})


def summary(library: Library, times: list[float]) -> Record:
    figures = {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}
    rounded = {name: round(value, 5) for name, value in figures.items()}
    return {"library": library.name, "variant": library.variant, **rounded}


def record(cell: Cell, op: str, library: Library, times: list[float]) -> Record:
    line = {"op": op} | cell.record() | summary(library, times)
    line["tflops"] = round(cell.flops(op) / line["ms"] / 1e9, 4)
    line["gbps"] = round(cell.bytes(op) / line["ms"] / 1e6, 1)
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
        found += [TandemC(arguments.library, deterministic=True)] if arguments.deterministic else []
        found += [TandemTorch()] if "torch" in arguments.through else []
    for name in arguments.libraries:
        try:
            found += [OTHERS[name]()] if name != "tandem" else []
        except (ImportError, OSError, RuntimeError) as error:
            print(f"without {name}: {error}", flush=True)
    found += [SharedObject(*other) for other in arguments.other]
    return found


FP8_OTHERS: dict[str, Callable[[], Library]] = {
    "cudnn": lambda: InBf16(OTHERS["cudnn"]()),
    "cudnn-graph": CudnnGraphFp8,
    "fa3": FlashAttention3Fp8,
}


def make_fp8_libraries(arguments: argparse.Namespace) -> list[Library]:
    found: list[Library] = []
    if "tandem" in arguments.libraries:
        found += [TandemFp8(arguments.library, variant) for variant in TandemFp8.VARIANTS]
        found += [InBf16(TandemC(arguments.library))]
    for name in arguments.libraries:
        try:
            found += [FP8_OTHERS[name]()] if name in FP8_OTHERS else []
        except (ImportError, OSError, RuntimeError) as error:
            print(f"without {name} in fp8: {error}", flush=True)
    for other in arguments.other:
        try:
            found.append(SharedObjectFp8(*other))
        except RuntimeError as error:
            print(f"without {other[1]} in fp8: {error}", flush=True)
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
    parser.add_argument("--ops", default="forward", help=f"by commas: {', '.join(OPS)}")
    parser.add_argument("--deterministic", action="store_true", help="also time the backward's deterministic mode")
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
    arguments.ops = arguments.ops.split(",")
    if unknown := set(arguments.ops) - set(OPS):
        parser.error(f"unknown ops: {', '.join(sorted(unknown))}")
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
    for op in bench.arguments.ops:
        for found in by_process(bench.records, op).values():
            print(f"\n{op}\n{compact_table(found, Anchors())}\n{relation_table(found)}")
    for fault in bench.faults:
        print(f"WRONG  {fault}")
    print(f"{time.perf_counter() - start:.0f} s")
    return 1 if bench.faults else 0


if __name__ == "__main__":
    sys.exit(main())
