"""What a call costs that has next to nothing to compute: tandem.torch beside PyTorch's scaled_dot_product_attention.

    python bench/eager_overhead.py [--device cuda] [--output bench/results/eager_overhead.jsonl]

Host microseconds a call, of one query row and one key. Rounds interleave the libraries; the figure is the median over
the rounds. On a GPU the calls of a round are queued, never waited for one by one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import time
from collections.abc import Callable

import torch

import tandem
import tandem.torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADDIM = 64
Calls = dict[str, Callable[[], object]]


def make_calls(device: str, dtype: torch.dtype) -> Calls:
    q = torch.randn(1, 1, 1, HEADDIM, dtype=dtype, device=device)
    transposed = q.transpose(1, 2)
    learned = q.detach().clone().requires_grad_()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    calls: Calls = {
        "tandem": lambda: tandem.torch.attention(q, q, q, causal=True),
        "sdpa": lambda: sdpa(transposed, transposed, transposed, is_causal=True),
    }
    if device == "cpu":
        calls["tandem, recorded for a backward"] = lambda: tandem.torch.attention(learned, q, q, causal=True)
        learned_transposed = learned.transpose(1, 2)
        calls["sdpa, recorded for a backward"] = lambda: sdpa(
            learned_transposed, transposed, transposed, is_causal=True
        )
    return calls


def microseconds(call: Callable[[], object], count: int, device: str) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    elapsed = time.perf_counter() - start
    if device == "cuda":
        torch.cuda.synchronize()
    return elapsed / count * 1e6


def measure(calls: Calls, rounds: int, count: int, device: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            elapsed = microseconds(call, count, device)
            if number > 0:  # the first round warms up
                times[name].append(elapsed)
    return times


def processor(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=300, help="in each round")
    parser.add_argument("--commit", default=None, help="of what is measured, where there is no git to ask")
    parser.add_argument("--output", type=pathlib.Path, help="file that the lines are appended to")
    arguments = parser.parse_args()
    dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    torch.set_num_threads(1)
    times = measure(make_calls(arguments.device, dtype), arguments.rounds, arguments.calls, arguments.device)
    lines = []
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{arguments.device:5} {name:32} {median:8.1f} us  ({min(values):.1f} to {max(values):.1f})")
        lines.append(
            {
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "commit": arguments.commit or commit(),
                "device": arguments.device,
                "processor": processor(arguments.device),
                "torch": torch.__version__,
                "tandem": tandem.__version__,
                "call": name,
                "us": round(median, 2),
                "us_min": round(min(values), 2),
                "us_max": round(max(values), 2),
            }
        )
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        with arguments.output.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
