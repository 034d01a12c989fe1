"""bench/compare.py and bench/quantize.py: whole runs of them on the CPU, at small sizes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
sys.path[:0] = [str(ROOT / "bench")]

cells = importlib.import_module("cells")
compare = importlib.import_module("compare")
quantize = importlib.import_module("quantize")

SMALL = ["--device", "cpu", "--tokens", "256", "--hidden", "128", "--reps", "2", "--warm-up", "0"]


def run_small(tmp_path: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    output = tmp_path / "lines.jsonl"
    library = str(BUILD / "libtandem.so")
    status = compare.main([*SMALL, "--library", library, "--output", str(output), "--commit", "abc", *words])
    return status, [json.loads(line) for line in output.read_text().splitlines()]


def test_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "64:*:128,64:none:128:fp16,128:causal:256:packed,64:none:128:2/1,64/32:causal:128"
    status, lines = run_small(tmp_path, "--cells", names, "--libraries", "tandem,torch,fa3", "--runs", "2")
    assert status == 0, capsys.readouterr().out
    forward = [record for record in lines if record["op"] == "forward"]
    assert len({record["run"] for record in forward}) == 2
    assert {record["library"] for record in forward} == {"tandem", "torch"}
    assert {cells.Cell.of_record(record) for record in forward} == set(cells.parse_cells(names, 256, 128))
    assert all(0 < record["ms_min"] <= record["ms"] <= record["ms_max"] for record in lines)
    shown = capsys.readouterr().out
    assert "without fa3: No module named 'flash_attn_interface'" in shown
    assert "128:causal:256:1/1:packed: not by torch" in shown
    assert "fp16 to bf16: 64:none:128:2/2:fp16 / 64:none:128:2/2 = " in shown


def test_cells_in_e4m3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "64:causal:256:e4m3,64:none:128:e4m3:packed,64:none:128:e4m3:2/1,64:none:128"
    status, lines = run_small(tmp_path, "--cells", names, "--libraries", "tandem,torch", "--runs", "1")
    assert status == 0, capsys.readouterr().out
    variants = {record["variant"] for record in lines if record["dtype"] == "e4m3"}
    assert variants == {"", "scales of heads", "V in rows", "from bf16", "bf16"}
    assert {record["library"] for record in lines if record["dtype"] == "bf16"} == {"tandem", "torch"}


def test_the_quantiser_beside_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "lines.jsonl"
    library = str(BUILD / "libtandem.so")
    words = [*SMALL, "--library", library, "--output", str(output), "--commit", "abc", "--runs", "2"]
    assert quantize.main([*words, "--headdims", "64,96", "--seqlens", "128"]) == 0, capsys.readouterr().out
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 2 * 2 * (len(quantize.VARIANTS) + 1)
    assert {(record["library"], record["variant"]) for record in lines} == {
        ("torch", "copy"),
        *(("tandem", variant) for variant in quantize.VARIANTS),
    }
    assert all(0 < record["ms_min"] <= record["ms"] <= record["ms_max"] for record in lines)


@pytest.mark.parametrize("mask", ["window", "documents", "prefix"])
def test_masks_are_held_against_the_definition(tmp_path: Path, mask: str) -> None:
    words = ["--cells", f"64:{mask}:4096:1/1", "--libraries", "tandem", "--runs", "1", "--reps", "1"]
    status, lines = run_small(tmp_path, *words)
    assert status == 0
    assert len(lines) == 1


GRADIENTS = (
    "64:*:128,64:none:128:fp16,128:causal:256:packed,64:none:128:2/1,64:window:128,64:prefix:128,64/32:causal:128"
)


def test_gradients_are_timed_and_held_against_the_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ops", "backward,forward_backward", "--cells", GRADIENTS, "--libraries", "tandem,torch", "--runs", "1"]
    status, lines = run_small(tmp_path, *words, "--deterministic")
    shown = capsys.readouterr().out
    assert status == 0, shown
    for op in ("backward", "forward_backward"):
        timed = [record for record in lines if record["op"] == op]
        assert {cells.Cell.of_record(one) for one in timed} == set(cells.parse_cells(GRADIENTS, 256, 128))
        assert {(one["library"], one["variant"]) for one in timed} == {
            ("tandem", ""), ("tandem", "deterministic"), ("torch", "")
        }  # fmt: skip
    assert "backward 128:causal:256:1/1:packed: not by torch" in shown


OTHER = """
#include <stdint.h>
int attention_forward_on_stream(const void* q, const void* k, const void* v, uint16_t* out, float* lse, int64_t batch,
                                int64_t seqlen, int64_t heads_q, int64_t heads_k, int64_t headdim, int causal,
                                void* stream) {
  if (headdim != 64 || heads_k != 1 || causal || stream || !q || !k || !v || !lse) return 1;
  for (int64_t i = 0; i < batch * seqlen * heads_q * headdim; ++i) out[i] = 0x3f80;  // 1
  return 0;
}
int attention_backward_on_stream(const void* q, const void* k, const void* v, const void* out, const void* dout,
                                 const float* lse, uint16_t* dq, uint16_t* dk, uint16_t* dv, int64_t batch,
                                 int64_t seqlen, int64_t heads_q, int64_t heads_k, int64_t headdim, int causal,
                                 void* stream) {
  if (headdim != 64 || heads_q != 2 || causal || stream || !q || !k || !v || !out || !dout) return 1;
  if (!(lse[0] > 4) || !(lse[0] < 7)) return 2;  // about the logarithm of 128
  for (int64_t i = 0; i < batch * seqlen * heads_q * headdim; ++i) dq[i] = dk[i * heads_k / 2] = 0;
  for (int64_t i = 0; i < batch * seqlen * heads_k * headdim; ++i) dv[i] = 0;
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wrong_library_is_called_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.c").write_text(OTHER)
    shared = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shared, tmp_path / "other.c"], check=True)
    words = [
        "--cells",
        "64:*:128:2/1",
        "--libraries",
        "torch",
        "--other",
        "ones",
        "all of them",
        str(shared),
        "--runs",
        "1",
    ]
    status, lines = run_small(tmp_path, *words)
    shown = capsys.readouterr().out
    assert status == 1
    assert "WRONG  64:none:128:2/1: ones (all of them) is off by" in shown
    assert "64:causal:128:2/1: not by ones (all of them): status 1" in shown
    assert [record["variant"] for record in lines if record["library"] == "ones"] == ["all of them"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wrong_backward_is_called_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.c").write_text(OTHER)
    shared = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shared, tmp_path / "other.c"], check=True)
    words = ["--ops", "backward", "--cells", "64:none:128:2/1", "--libraries", "torch", "--runs", "1"]
    status, _ = run_small(tmp_path, *words, "--other", "zeros", "", str(shared))
    shown = capsys.readouterr().out
    assert status == 1
    for name in ("dQ", "dK", "dV"):
        assert f"WRONG  backward 64:none:128:2/1: zeros is off by 1.00e+00 in {name}" in shown
