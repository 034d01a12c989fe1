"""bench/train.py: its text, its batches, and whole trainings on the CPU at tiny size; its chart and table."""

from __future__ import annotations

import importlib
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

curves = importlib.import_module("curves")
train = importlib.import_module("train")
training_figures = importlib.import_module("training_figures")

TINY = ["--device", "cpu", "--steps", "3", "--batch", "2", "--seqlen", "48", "--dim", "192", "--layers", "1"]
TINY += ["--bytes", "100000", "--compiler", "aot_eager", "--commit", "abc"]


def test_the_text_is_of_this_repository_first() -> None:
    text, what = train.read_text(50_000)
    assert len(text) >= 50_000
    assert bytes(text[:4000].tolist()) in b"\n\n".join(p.read_bytes() for p in sorted((ROOT / "docs").glob("*.md")))
    assert "standard library of Python" in what


def test_documents_begin_after_empty_lines() -> None:
    text = torch.frombuffer(
        bytearray(b"a" * 40 + b"\n\n" + b"b" * 40 + b"\n\nc\n\n" + b"d" * 130 + b"\n\n" + b"e" * 9), dtype=torch.uint8
    )
    assert train.document_starts(text, 64).tolist() == [0, 42, 84, 87 + 61, 87 + 125]


def test_offsets_and_mask_of_a_batch_say_the_same() -> None:
    arguments = train.parse_arguments(TINY)
    text, _ = train.read_text(100_000)
    batch = next(train.batches(arguments, text, packed=True))
    again = next(train.batches(arguments, text, packed=True))
    assert torch.equal(batch.inputs, again.inputs)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    seqlen = arguments.seqlen
    right = torch.zeros(2 * seqlen, 2 * seqlen, dtype=torch.bool)
    for begin, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        right[begin:end, begin:end] = torch.ones(end - begin, end - begin).tril().bool()
    assert len(batch.cu_seqlens) > 3
    for entry in range(2):
        rows = slice(entry * seqlen, (entry + 1) * seqlen)
        assert torch.equal(batch.mask[entry, 0], right[rows, rows])
    assert right.sum() == batch.mask.sum()  # no document goes over from one row of the batch to the next


def test_trainings_of_every_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "lines.jsonl"
    assert train.main([*TINY, "--output", str(output)]) == 0, capsys.readouterr().out
    lines = output.read_text().splitlines()
    trainings = [json.loads(line) for line in lines]
    assert [(one["variant"], one["attention"]) for one in trainings] == [
        ("plain", "tandem"), ("plain", "torch"), ("plain", "control"),
        *((variant, attention) for variant in train.VARIANTS[1:] for attention in ("tandem", "torch")),
    ]  # fmt: skip
    by_name = {(one["variant"], one["attention"]): one for one in trainings}
    assert all(len(one["losses"]) == 3 and one["losses"][2] < one["losses"][0] for one in trainings)
    for variant in train.VARIANTS:
        ours, theirs = (by_name[variant, name]["losses"] for name in ("tandem", "torch"))
        assert curves.distance(ours, theirs) < 0.01
    assert by_name["gqa", "tandem"]["kv_heads"] == 1
    assert by_name["packed", "tandem"]["losses"] != by_name["plain", "tandem"]["losses"]

    picture = ElementTree.fromstring(training_figures.chart(lines))
    space = "{http://www.w3.org/2000/svg}"
    assert [len(panel.findall(f"{space}path/{space}title")) for panel in picture.findall(f"{space}g")] == [
        3,
        2,
        2,
        2,
        2,
    ]
    assert sum(line.startswith("| ") for line in training_figures.table(lines).splitlines()) == 2 + len(train.VARIANTS)


def test_a_wrong_attention_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def thrice(q: Any, k: Any, v: Any, batch: Any) -> Any:
        return 3 * train.tandem_attention(q, k, v, batch)

    monkeypatch.setitem(train.CALLS, "tandem", thrice)
    monkeypatch.setitem(train.CALLS, "control", train.torch_attention)  # its distance allows more, as the text has it
    monkeypatch.setattr(train, "CURVES", 1e-3)
    assert train.main([*TINY, "--variants", "plain", "--steps", "8", "--rate", "0.01"]) == 1
    assert "WRONG  plain: the curves of tandem and torch part" in capsys.readouterr().out


def test_smoothed_curves_and_their_distance() -> None:
    assert curves.smoothed([4.0, 2.0]) == [4.0, 3.0]
    assert curves.smoothed([0.0] * 20 + [20.0])[-1] == 1.0
    assert curves.distance([4.0, 2.0], [4.0, 3.0]) == 0.5
    lost = [{"variant": "plain", "attention": "tandem", "losses": [1.0, float("nan")]}]
    assert train.faults_of(lost) == ["plain tandem: a loss is not finite"]
