"""Times variants of the tiled CPU backend that differ in one constant, interleaved in one process.

    python bench/cpu_tiles.py --output bench/results/cpu_tiles.jsonl

Each variant is a copy of the sources with one line replaced, built for this machine's instruction set only. Every round
times each variant once, in an order that rotates; the figures are the fastest of the rounds, which other load on the
machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import Any

import torch
from cpu_compare import ROOT, cpu_name, parse_shape, time_calls
from measurements import commit
from tandem_c import Tandem

TILES = "src/cpu/tiled_tiles.h"
GEMM = "src/cpu/simd/gemm-inl.h"
SCRATCH = "src/cpu/tiled_scratch.h"
VARIANTS = {  # name: (file, pattern, replacement)
    "as committed": (TILES, r"", ""),
    "as committed, again": (TILES, r"", ""),  # its ratio shows what the others' are worth
    "kBlockM = 128": (TILES, r"kBlockM = 256;", "kBlockM = 128;"),
    "kBlockM = 512": (TILES, r"kBlockM = 256;", "kBlockM = 512;"),
    "kBlockN = 48": (TILES, r"kBlockN = 96;", "kBlockN = 48;"),
    "kBlockN = 64": (TILES, r"kBlockN = 96;", "kBlockN = 64;"),
    "kBlockN = 192": (TILES, r"kBlockN = 96;", "kBlockN = 192;"),
    "kBlockRows = 8": (GEMM, r"kBlockRows = 12;", "kBlockRows = 8;"),
    "kBlockRows = 6": (GEMM, r"kBlockRows = 12;", "kBlockRows = 6;"),
    "rows not spread": (SCRATCH, r"return padded / kLine % 2 == 1 \? padded : padded \+ kLine;", "return padded;"),
}
ONE_TARGET = "-march=native -DHWY_COMPILE_ONLY_STATIC"


def build(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The variant's libtandem.so."""
    for part in ("CMakeLists.txt", "cmake", "include", "src"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    file, pattern, replacement = VARIANTS[name]
    text, count = re.subn(pattern, replacement, (folder / file).read_text(), count=1)
    if count == 0:
        raise RuntimeError(f"{file} no longer has the line that '{name}' replaces")
    (folder / file).write_text(text)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTANDEM_BUILD_TESTS=OFF", "-DTANDEM_BUILD_CLI=OFF"]
    configure = [
        "cmake",
        "-S",
        folder,
        "-B",
        folder / "build",
        "-G",
        "Ninja",
        *options,
        f"-DCMAKE_CXX_FLAGS={ONE_TARGET}",
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", folder / "build", "-j", str(os.cpu_count())], check=True, stdout=subprocess.DEVNULL
    )
    return folder / "build" / "libtandem.so"


def measure(
    libraries: dict[str, Tandem], shape: tuple[int, ...], causal: bool, rounds: int
) -> dict[str, dict[str, float]]:
    """{operation: {variant: milliseconds}} in fp32."""
    batch, seqlen, heads, _ = shape
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(shape) for _ in range(4))
    out, dq, dk, dv = (torch.empty_like(q) for _ in range(4))
    lse = torch.empty(batch, heads, seqlen)
    forward = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    backward = {**forward, "dout": dout, "dq": dq, "dk": dk, "dv": dv}
    results = {}
    for operation, tensors in (("forward", forward), ("backward", backward)):
        mask = {"causal": int(causal)}
        calls = {name: library.prepared_call(operation, tensors, mask) for name, library in libraries.items()}
        times = time_calls(calls, rounds, pause_s=0.02)
        results[operation] = {name: min(values) for name, values in times.items()}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="append JSON lines to this file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", nargs="+", type=parse_shape, default=[(1, 2048, 8, 64), (1, 2048, 4, 128)])
    arguments = parser.parse_args()
    common: dict[str, Any] = {"commit": commit(), "cpu": cpu_name(), "threads": arguments.threads, "dtype": "fp32"}
    with tempfile.TemporaryDirectory() as scratch:
        libraries = {}
        for number, name in enumerate(VARIANTS):
            folder = pathlib.Path(scratch) / str(number)
            folder.mkdir()
            libraries[name] = Tandem(build(name, folder), arguments.threads)
        for shape in arguments.shapes:
            for causal in (False, True):
                for operation, times in measure(libraries, shape, causal, arguments.rounds).items():
                    where = {"op": operation, "shape": shape, "mask": "causal" if causal else "none"}
                    lines = [{**common, **where, "variant": name, "ms_min": round(ms, 3)} for name, ms in times.items()]
                    for line in lines:
                        print(f"{operation:9} {shape} {where['mask']:7} {line['variant']:16} {line['ms_min']:9.2f} ms")
                    with arguments.output.open("a") as file:
                        file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
