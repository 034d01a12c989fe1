"""Times Tandem's CPU backend against PyTorch's scaled_dot_product_attention, interleaved in one process.

    python bench/cpu_compare.py --library build/libtandem.so --output bench/results/cpu.jsonl

Each round times every library once, in an order that rotates; the figures are medians over the rounds. Both run with
the same number of threads on the same tensors in memory, of which each gets a view with its own order of axes. Memory
"bshd" is (batch, seqlen, heads, headdim), as a model's projections give it; "bhsd" is (batch, heads, seqlen, headdim).
A pause before each timed call lets the other library's idle threads stop spinning.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch
from measurements import commit
from tandem_c import Tandem

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def make_calls(case: dict[str, Any], tandem: Tandem) -> dict[str, dict[str, Callable[[], Any]]]:
    """{operation: {library: call}} on the same random values, after checking that the results agree."""
    dtype = DTYPES[case["dtype"]]
    causal = case["mask"] == "causal"
    shape = (case["batch"], case["seqlen_q"], case["nheads_q"], case["headdim"])
    torch.manual_seed(0)

    def tensor() -> torch.Tensor:
        values = torch.randn(shape).to(dtype)
        return values.transpose(1, 2).contiguous().transpose(1, 2) if case["memory"] == "bhsd" else values

    q, k, v, dout = (tensor() for _ in range(4))
    out, dq, dk, dv = (torch.empty_like(q) for _ in range(4))  # of the same strides
    lse = torch.empty(shape[0], shape[2], shape[1])
    tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
    gradients = {"dout": dout, "dq": dq, "dk": dk, "dv": dv}
    mask = {"causal": int(causal)}
    forward = tandem.prepared_call("forward", tensors, mask)
    backward = tandem.prepared_call("backward", tensors | gradients, mask)
    forward()
    backward()

    torch_q, torch_k, torch_v = (x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
    torch_dout = dout.transpose(1, 2)
    attention = torch.nn.functional.scaled_dot_product_attention

    def torch_forward() -> torch.Tensor:
        with torch.no_grad():
            return attention(torch_q, torch_k, torch_v, is_causal=causal)

    torch_out = attention(torch_q, torch_k, torch_v, is_causal=causal)

    def torch_backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(torch_out, (torch_q, torch_k, torch_v), torch_dout, retain_graph=True)

    tolerance = 2e-5 if case["dtype"] == "fp32" else 3e-2
    expected = (torch_forward(), *torch_backward())
    for ours, theirs in zip((out, dq, dk, dv), expected, strict=True):
        difference = (ours.transpose(1, 2).float() - theirs.float()).abs().max() / theirs.float().abs().max()
        if not difference < tolerance:
            raise RuntimeError(f"the libraries disagree by {difference:.3g} for {case}")
    return {
        "forward": {"tandem": forward, "torch": torch_forward},
        "backward": {"tandem": backward, "torch": torch_backward},
    }


def time_calls(calls: dict[str, Callable[[], Any]], rounds: int, pause_s: float) -> dict[str, list[float]]:
    """Milliseconds of each round. The first round warms up and is dropped."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds + 1):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause_s)
            start = time.perf_counter()
            calls[name]()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: values[1:] for name, values in times.items()}


def flops(operation: str, case: dict[str, Any]) -> float:
    count = 4.0 * case["batch"] * case["nheads_q"] * case["seqlen_q"] * case["seqlen_k"] * case["headdim"]
    return count * (2.5 if operation == "backward" else 1) * (0.5 if case["mask"] == "causal" else 1)


def cpu_name() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def parse_shape(text: str) -> tuple[int, int, int, int]:
    batch, seqlen, heads, headdim = (int(part) for part in text.split(","))
    return batch, seqlen, heads, headdim


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build" / "libtandem.so")
    parser.add_argument("--output", type=pathlib.Path, help="append JSON lines to this file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pause-ms", type=float, default=20)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument("--masks", nargs="+", choices=["none", "causal"], default=["none", "causal"])
    parser.add_argument("--memory", nargs="+", choices=["bshd", "bhsd"], default=["bshd", "bhsd"])
    parser.add_argument("--operations", nargs="+", choices=["forward", "backward"], default=["forward", "backward"])
    parser.add_argument(
        "--shapes", nargs="+", type=parse_shape, default=[(1, 4096, 16, 64), (1, 4096, 8, 128)],
        metavar="B,S,H,D", help="batch, seqlen, heads, headdim",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    tandem = Tandem(arguments.library, arguments.threads)
    common = {
        "run": uuid.uuid4().hex[:8],
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "gpu": cpu_name(),
        "driver": f"torch {torch.__version__}, {arguments.threads} threads",
    }
    print(f"{common['gpu']}, {common['driver']}, commit {common['commit']}")
    print(
        f"{'op':9} {'dtype':5} {'shape':18} {'mask':7} {'memory':6} {'tandem ms':>10} {'torch ms':>10} {'ratio':>6}",
        end="",
    )
    print(f" {'GFLOPS':>7}")
    cases = [
        {
            "dtype": dtype, "headdim": shape[3], "headdim_v": shape[3], "mask": mask, "batch": shape[0],
            "seqlen_q": shape[1], "seqlen_k": shape[1], "nheads_q": shape[2], "nheads_k": shape[2], "memory": memory,
        }
        for dtype in arguments.dtypes for shape in arguments.shapes
        for memory in arguments.memory for mask in arguments.masks
    ]  # fmt: skip
    for case in cases:
        calls = make_calls(case, tandem)
        for operation in arguments.operations:
            times = time_calls(calls[operation], arguments.rounds, arguments.pause_ms / 1e3)
            report(operation, case, times, common, arguments.output)


def report(
    operation: str,
    case: dict[str, Any],
    times: dict[str, list[float]],
    common: dict[str, Any],
    output: pathlib.Path | None,
) -> None:
    work = flops(operation, case)
    medians = {library: statistics.median(values) for library, values in times.items()}
    shape = f"{case['batch']},{case['seqlen_q']},{case['nheads_q']},{case['headdim']}"
    # Ratio of the rounds' own pairs: what else ran on the machine then slowed down both.
    ratio = statistics.median(theirs / ours for ours, theirs in zip(times["tandem"], times["torch"], strict=True))
    print(
        f"{operation:9} {case['dtype']:5} {shape:18} {case['mask']:7} {case['memory']:6} {medians['tandem']:10.2f}"
        f" {medians['torch']:10.2f} {ratio:6.2f} {work / medians['tandem'] / 1e6:7.0f}",
        flush=True,
    )
    if output is None:
        return
    with output.open("a") as file:
        for library, values in times.items():
            tflops = round(work / medians[library] / 1e9, 4)
            line = common | {"op": operation} | case | {
                "library": library, "variant": "", "ms": round(medians[library], 3), "ms_min": round(min(values), 3),
                "ms_max": round(max(values), 3), "tflops": tflops, "gbps": None,
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
