#!/usr/bin/env python3
"""Trains a small transformer on real text through tandem.torch and through PyTorch's own attention, from the same seed.

    python bench/train.py --output bench/results/training.jsonl
    python bench/train.py --device cpu --steps 5 --batch 2 --seqlen 64 --dim 128 --layers 1 --variants plain,packed

The text is bytes: this repository's documents and sources, then the modules of Python's standard library, so that any
machine with both has it. The model predicts the next byte; its weights are fp32, its products bf16 (autocast). For each
variant the same model, from the same weights, sees the same batches once with each attention:

    plain        causal attention
    compile      the same, the whole model under torch.compile(fullgraph=True)
    checkpoint   each layer's activations are computed again in the backward
    gqa          three query heads to a key head
    packed       documents of different lengths, by offsets; PyTorch gets a mask

Attentions: tandem; torch (scaled_dot_product_attention, its own choice of a kernel); control (the same, by plain matrix
products: how far two of PyTorch's own are apart). A line of --output is one training: its losses and where it ran.
Fails if a loss is not finite, or if the curves of tandem and torch part: CURVES below says how far they may.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import pathlib
import platform
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from curves import distance, smoothed
from measurements import commit
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import tandem.torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ("docs/*.md", "*.md", "include/**/*", "src/**/*.*", "python/**/*.py")
BYTES = 256
HEADDIM = 64
CURVES = 0.03  # nats between the smoothed curves of tandem and torch, or twice what is between torch and the control
VARIANTS = ("plain", "compile", "checkpoint", "gqa", "packed")
ATTENTIONS = ("tandem", "torch", "control")

# (q, k, v, batch) of (batch, seqlen, heads, headdim) to the output.
Attention = Callable[[Tensor, Tensor, Tensor, "Batch"], Tensor]


# --------------------------------------------------------------------------------------------------------------- text


def read_text(least: int) -> tuple[Tensor, str]:
    """At least that many bytes if there are so many, and what they are."""
    files = [path for pattern in TEXTS for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    library = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts, size = [], 0
    for path in [*files, *library]:
        if size >= least:
            break
        parts.append(path.read_bytes())
        size += len(parts[-1])
    text = torch.frombuffer(bytearray(b"\n\n".join(parts)), dtype=torch.uint8)
    what = f"this repository and the standard library of Python {platform.python_version()}, {len(text)} bytes"
    return text, what


def document_starts(text: Tensor, longest: int) -> Tensor:
    """Documents begin after empty lines; none is longer than `longest`, and few are shorter than 32 bytes."""
    newline = text == ord("\n")
    after_empty_line = (torch.nonzero(newline[1:] & newline[:-1])[:, 0] + 2).tolist()
    starts = [0]
    for start in after_empty_line:
        while start - starts[-1] > longest:
            starts.append(starts[-1] + longest)
        if start - starts[-1] >= 32:
            starts.append(start)
    return torch.tensor(starts)


@dataclasses.dataclass
class Batch:
    inputs: Tensor  # (batch, seqlen)
    targets: Tensor
    cu_seqlens: Tensor | None = None  # of documents, in rows of batch * seqlen
    mask: Tensor | None = None  # (batch, 1, seqlen, seqlen), for attentions without offsets


def batches(arguments: argparse.Namespace, text: Tensor, packed: bool) -> Iterator[Batch]:
    """The same for the same seed."""
    generator = torch.Generator().manual_seed(arguments.seed)
    starts = document_starts(text, arguments.seqlen)
    rows = torch.arange(arguments.seqlen)
    while True:
        first = torch.randint(0, len(text) - arguments.seqlen - 1, (arguments.batch, 1), generator=generator)
        places = first + rows
        tokens, next_tokens = text[places].long(), text[places + 1].long()
        batch = Batch(tokens.to(arguments.device), next_tokens.to(arguments.device))
        if packed:
            document = torch.searchsorted(starts, places, right=True)  # (batch, seqlen): its number
            begins = torch.ones_like(document, dtype=torch.bool)
            begins[:, 1:] = document[:, 1:] != document[:, :-1]
            offsets = [*torch.nonzero(begins.flatten())[:, 0].tolist(), document.numel()]
            batch.cu_seqlens = torch.tensor(offsets, dtype=torch.int32).to(arguments.device)
            same = document[:, None, :, None] == document[:, None, None, :]
            batch.mask = (same & (rows[:, None] >= rows)).to(arguments.device)
        yield batch


# --------------------------------------------------------------------------------------------------------------- model


def tandem_attention(q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
    if batch.cu_seqlens is None:
        return tandem.torch.attention(q, k, v, causal=True)
    rows = (t.flatten(0, 1) for t in (q, k, v))
    packed = tandem.torch.attention_varlen(*rows, batch.cu_seqlens, batch.cu_seqlens, causal=True)
    return packed.view(*q.shape[:-1], v.shape[-1])


def torch_attention(q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
    heads_outside = (t.transpose(1, 2) for t in (q, k, v))
    options: dict[str, Any] = {"is_causal": True} if batch.mask is None else {"attn_mask": batch.mask}
    gqa = q.shape[2] != k.shape[2]
    return F.scaled_dot_product_attention(*heads_outside, enable_gqa=gqa, **options).transpose(1, 2)


def control_attention(q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return torch_attention(q, k, v, batch)


CALLS: dict[str, Attention] = {"tandem": tandem_attention, "torch": torch_attention, "control": control_attention}


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, attention: Attention):
        super().__init__()
        self.heads, self.kv_heads, self.attention = heads, kv_heads, attention
        self.norm_1, self.norm_2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * HEADDIM, bias=False)
        self.project = nn.Linear(heads * HEADDIM, dim, bias=False)
        self.up = nn.Linear(dim, 2 * 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, batch: Batch) -> Tensor:
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (self.heads + 2 * self.kv_heads, HEADDIM))
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), 2)
        x = x + self.project(self.attention(rotated(q, rotation), rotated(k, rotation), v, batch).flatten(2))
        gate, value = self.up(self.norm_2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary embedding; rotation: (2, seqlen, 1, HEADDIM / 2), cosines and sines."""
    a, b = x.float().chunk(2, -1)
    cosine, sine = rotation
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self, arguments: argparse.Namespace, attention: Attention, kv_heads: int, recompute: bool):
        super().__init__()
        heads = arguments.dim // HEADDIM
        self.recompute = recompute
        self.embed = nn.Embedding(BYTES, arguments.dim)
        self.layers = nn.ModuleList(Layer(arguments.dim, heads, kv_heads, attention) for _ in range(arguments.layers))
        self.norm = nn.RMSNorm(arguments.dim)
        self.head = nn.Linear(arguments.dim, BYTES, bias=False)
        angles = torch.outer(torch.arange(arguments.seqlen), 10000.0 ** -torch.linspace(0, 1, HEADDIM // 2))
        self.register_buffer("rotation", torch.stack([angles.cos(), angles.sin()])[:, :, None])
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: Batch) -> Tensor:
        x = self.embed(batch.inputs)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.rotation, batch, use_reentrant=False)
            else:
                x = layer(x, self.rotation, batch)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), batch.targets.flatten())


# ------------------------------------------------------------------------------------------------------------ training


def train(arguments: argparse.Namespace, text: Tensor, variant: str, attention: str) -> dict[str, Any]:
    torch.manual_seed(arguments.seed)
    heads = arguments.dim // HEADDIM
    kv_heads = heads // 3 if variant == "gqa" and heads % 3 == 0 else heads
    model = Model(arguments, CALLS[attention], kv_heads, variant == "checkpoint").to(arguments.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = max(1, arguments.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            min(1, (step + 1) / warm_up) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / arguments.steps)))
        ),
    )
    step_of = torch.compile(model, fullgraph=True, backend=arguments.compiler) if variant == "compile" else model
    losses = []
    start = time.perf_counter()
    data = batches(arguments, text, variant == "packed")
    for _ in range(arguments.steps):
        with torch.autocast(arguments.device, dtype=torch.bfloat16):
            loss = step_of(next(data))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    seconds = time.perf_counter() - start
    curve = [round(value, 4) for value in torch.stack(losses).tolist()]
    shown = f"{variant:11} {attention:8} {parameters} parameters, {arguments.steps} steps in {seconds:.1f} s"
    print(f"{shown}: loss {curve[0]:.3f} to {smoothed(curve)[-1]:.3f}", flush=True)
    return {"variant": variant, "attention": attention, "parameters": parameters, "kv_heads": kv_heads, "losses": curve}


def faults_of(trainings: list[dict[str, Any]]) -> list[str]:
    curves = {(one["variant"], one["attention"]): one["losses"] for one in trainings}
    faults = [
        f"{' '.join(name)}: a loss is not finite" for name, curve in curves.items() if not math.isfinite(sum(curve))
    ]
    apart = [
        distance(curves[variant, "torch"], curve)
        for (variant, attention), curve in curves.items()
        if attention == "control" and (variant, "torch") in curves
    ]
    limit = max([CURVES, *(2 * value for value in apart)])
    for (variant, attention), curve in curves.items():
        if attention != "tandem" or (variant, "torch") not in curves:
            continue
        value = distance(curve, curves[variant, "torch"])
        print(
            f"{variant}: the smoothed curves of tandem and torch are at most {value:.4f} apart, of {limit:.4f} allowed"
        )
        if not value <= limit:
            faults.append(f"{variant}: the curves of tandem and torch part by {value:.4f}")
    return faults


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="by commas")
    parser.add_argument("--attentions", default="tandem,torch", help="by commas; control is added to the first variant")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=8_000_000, help="of text")
    parser.add_argument("--compiler", default="inductor", help="backend of torch.compile")
    parser.add_argument("--output", type=pathlib.Path, help="append the lines of results to this file")
    parser.add_argument("--commit", default=commit(), help="of the library, where there is no git to ask")
    arguments = parser.parse_args(words)
    arguments.variants, arguments.attentions = arguments.variants.split(","), arguments.attentions.split(",")
    if unknown := {*arguments.variants, *arguments.attentions} - {*VARIANTS, *ATTENTIONS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if arguments.dim % HEADDIM != 0:
        parser.error(f"--dim must be a multiple of the headdim, {HEADDIM}")
    return arguments


def main(words: list[str] | None = None) -> int:
    arguments = parse_arguments(words)
    text, what = read_text(arguments.bytes)
    started = datetime.datetime.now(datetime.UTC)
    where = {
        "run": f"training-{started:%Y-%m-%dT%H:%M:%SZ}", "date": f"{started:%Y-%m-%d}", "commit": arguments.commit,
        "gpu": torch.cuda.get_device_name(0) if arguments.device == "cuda" else "none", "torch": torch.__version__,
        "text": what, "batch": arguments.batch, "seqlen": arguments.seqlen, "dim": arguments.dim,
        "layers": arguments.layers, "headdim": HEADDIM, "seed": arguments.seed,
    }  # fmt: skip
    print(f"{where['gpu']}, torch {torch.__version__}; {what}", flush=True)
    trainings = []
    for variant in arguments.variants:
        control = ["control"] if variant == arguments.variants[0] and "control" not in arguments.attentions else []
        for attention in [*arguments.attentions, *control]:
            trainings.append(train(arguments, text, variant, attention))
            if arguments.output:
                with arguments.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(where | trainings[-1]) + "\n")
    faults = faults_of(trainings)
    for fault in faults:
        print(f"WRONG  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
