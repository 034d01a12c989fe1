"""The error table of the FlashAttention-3 paper: how far attention is from the same attention in double.

    python bench/errors.py                                               on the CPU
    python bench/errors.py --device cuda --output bench/results/errors_cuda.jsonl

Inputs have outliers: N(0, 1) + N(0, 100) * Bernoulli(0.001), rounded to the 16-bit type. Each row also has V + 1: a
mean shows what a sum loses. The error is the root mean square, and the maximum, over --rows query rows of two heads.

Of fp16 and bf16:  plain              S, P and O rounded to the type, sums in fp32
                   tandem
Of e4m3, from fp16 inputs, with O in fp16:
                   plain              q, k, v and P rounded with one scale per tensor, S in fp32
                   tandem             scales per block of 128 rows, q and k rotated
                   no_block_scales    one scale per tensor, q and k rotated
                   no_rotation        scales per block

A variant that the device cannot run is left out, with the reason. Appends a line a row to --output.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import pathlib
import platform
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import torch
from measurements import commit
from torch import Tensor

import tandem
import tandem.torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADS = 2
OUTLIER_SHARE, OUTLIER_DEVIATION = 0.001, 10.0
E4M3_MAX = 448.0
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float16}  # of the inputs
VARIANTS = {
    "fp16": ("plain", "tandem"),
    "bf16": ("plain", "tandem"),
    "e4m3": ("plain", "tandem", "no_block_scales", "no_rotation"),
}
ROTATION_SEED = 1


def random_inputs(rows: int, keys: int, headdim: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of (1, rows or keys, HEADS, headdim); the same on every device."""
    generator = torch.Generator().manual_seed(headdim << 32 | keys)

    def tensor(length: int) -> Tensor:
        shape = (1, length, HEADS, headdim)
        outliers = torch.rand(shape, generator=generator) < OUTLIER_SHARE
        spread = torch.randn(shape, generator=generator) * OUTLIER_DEVIATION
        return (torch.randn(shape, generator=generator) + spread * outliers).to(dtype).to(device)

    return tensor(rows), tensor(keys), tensor(keys)


def by_head(q: Tensor, k: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(head, scores of its rows and keys), in the type of q, with the products summed in it."""
    for head in range(HEADS):
        yield head, q[0, :, head] @ k[0, :, head].T * q.shape[-1] ** -0.5


def exact(q: Tensor, k: Tensor, values: list[Tensor]) -> list[Tensor]:
    """In double, for each v."""
    outs = [torch.empty(*q.shape[:-1], v.shape[-1], dtype=torch.float64, device=q.device) for v in values]
    for head, scores in by_head(q.double(), k.double()):
        p = scores.softmax(-1)
        for out, v in zip(outs, values, strict=True):
            out[0, :, head] = p @ v[0, :, head].double()
    return outs


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    for head, scores in by_head(q.float(), k.float()):
        p = scores.to(q.dtype).float().softmax(-1).to(q.dtype).float()
        out[0, :, head] = (p @ v[0, :, head].float()).to(q.dtype)
    return out


def rounded_per_tensor(x: Tensor) -> Tensor:
    """As e4m3 with one scale holds it."""
    scale = x.float().abs().max() / E4M3_MAX
    return (x.float() / scale).to(torch.float8_e4m3fn).float() * scale


def plain_fp8(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [scores.softmax(-1) for _, scores in by_head(rounded_per_tensor(q), rounded_per_tensor(k))]
    p = rounded_per_tensor(torch.stack(heads))
    return torch.einsum("hij,jhd->ihd", p, rounded_per_tensor(v)[0])[None].to(q.dtype)


def quantized(x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """By the device's quantiser, or by the CPU's where that has none: both give the same values but for ties."""
    try:
        return tandem.torch.quantize_fp8(x, **options)
    except tandem.UnsupportedError:
        if not x.is_cuda:
            raise
        out, scale = tandem.torch.quantize_fp8(x.cpu(), **options)
        return out.to(x.device), scale.to(x.device)


def tandem_fp8(q: Tensor, k: Tensor, v: Tensor, variant: str) -> Tensor:
    granularity: Any = "tensor" if variant == "no_block_scales" else "block"
    rotation: dict[str, Any] = {"rotate": variant != "no_rotation", "seed": ROTATION_SEED}
    transposed = v.is_cuda  # as a GPU's kernel wants it
    q8, q_scale = quantized(q, granularity=granularity, **rotation)
    k8, k_scale = quantized(k, granularity=granularity, **rotation)
    v8, v_scale = quantized(v, granularity=granularity, transposed=transposed)
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    return tandem.torch.attention(q8, k8, v8, **scales, v_transposed=transposed, out_dtype=q.dtype)


def compute(dtype: str, variant: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if variant == "plain":
        return plain_fp8(q, k, v) if dtype == "e4m3" else plain(q, k, v)
    return tandem_fp8(q, k, v, variant) if dtype == "e4m3" else tandem.torch.attention(q, k, v)


def measure(dtype: str, headdim: int, keys: int, rows: int, device: str) -> Iterator[dict[str, Any]]:
    q, k, v = random_inputs(rows, keys, headdim, DTYPES[dtype], device)
    means = {0: v, 1: v + 1}
    for (mean, values), expected in zip(means.items(), exact(q, k, list(means.values())), strict=True):
        for variant in VARIANTS[dtype]:
            try:
                error = compute(dtype, variant, q, k, values).double() - expected
            except (tandem.UnsupportedError, tandem.NoDeviceError) as reason:
                print(f"{dtype} {variant}: left out, {reason}", file=sys.stderr)
                continue
            yield {
                "dtype": dtype, "headdim": headdim, "seqlen_q": rows, "seqlen_k": keys, "nheads_q": HEADS,
                "v_mean": mean, "library": "torch" if variant == "plain" else "tandem", "variant": variant,
                "rmse": float(f"{error.square().mean().sqrt().item():.4g}"),
                "max_error": float(f"{error.abs().max().item():.4g}"),
            }  # fmt: skip


def processor(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    found = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return found[0].partition(":")[2].strip() if found else platform.machine()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--headdims", default="64,96,128,192,256")
    parser.add_argument("--seqlens", default="1024,4096,16384,131072")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "bench/results/errors.jsonl")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    about = {
        "run": uuid.uuid4().hex[:8], "date": datetime.date.today().isoformat(), "commit": commit(),
        "gpu": processor(arguments.device), "driver": f"torch {torch.__version__}", "op": "error", "mask": "none",
    }  # fmt: skip
    dtypes = arguments.dtypes.split(",")
    headdims, seqlens = ([int(entry) for entry in text.split(",")] for text in (arguments.headdims, arguments.seqlens))
    with torch.inference_mode(), arguments.output.open("a", encoding="utf-8") as output:
        for dtype, headdim, keys in itertools.product(dtypes, headdims, seqlens):
            for record in measure(dtype, headdim, keys, arguments.rows, arguments.device):
                print(*(record[name] for name in ("dtype", "headdim", "seqlen_k", "v_mean", "variant", "rmse")))
                output.write(json.dumps(about | record) + "\n")
                output.flush()


if __name__ == "__main__":
    main()
