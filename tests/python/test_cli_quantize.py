"""`tandem quantize`, and `tandem run` over what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy_reference import Array, Problem, solve
from safetensors.numpy import load_file, save_file
from test_cli import FILE_ERROR, LIBRARY_REFUSED, PROGRAM, USAGE_ERROR, fail, random, succeed

pytestmark = pytest.mark.skipif(not PROGRAM, reason="TANDEM_CLI does not name the built program")

LENGTHS = np.array([0, 140, 150], np.int32)


def header(path: Path) -> dict[str, Any]:
    """Of a .safetensors file; safetensors.numpy cannot read fp8."""
    content = path.read_bytes()
    result: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return result


def attend_in_fp8(folder: Path, tensors: dict[str, Array], *options: str) -> Array:
    save_file(tensors, folder / "in.safetensors")
    succeed("quantize", "--input", folder / "in.safetensors", "--output", folder / "fp8.safetensors", *options)
    files = ("--input", folder / "fp8.safetensors", "--output", folder / "out.safetensors")
    succeed("run", *files, "--out-dtype", "fp32")
    out: Array = load_file(folder / "out.safetensors")["out"]
    return out


@pytest.mark.parametrize(
    "options", [(), ("--rotate", "--seed", "7"), ("--granularity", "head"), ("--granularity", "tensor")]
)
def test_run_takes_what_quantize_writes(options: tuple[str, ...], tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = {name: random(rng, (2, 150, 2, 32)) for name in "qkv"}
    out = attend_in_fp8(tmp_path, tensors, *options)
    expected = solve(Problem(**tensors)).out
    assert 0 < np.linalg.norm(out - expected) < 0.1 * np.linalg.norm(expected)
    written = header(tmp_path / "fp8.safetensors")
    assert all(written[name]["dtype"] == "F8_E4M3" for name in "qkv")
    axes = {"tensor": 1, "head": 2}.get(options[-1] if options else "", 3)
    assert all(len(written[f"{name}_scale"]["shape"]) == axes for name in "qkv")


def test_packed(tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = {name: random(rng, (150, 2, 32)) for name in "qkv"}
    offsets = {"cu_seqlens_q": LENGTHS, "cu_seqlens_k": LENGTHS}
    out = attend_in_fp8(tmp_path, {**tensors, **offsets}, "--rotate", "--checked")
    expected = solve(Problem(**tensors, **offsets)).out
    assert 0 < np.linalg.norm(out - expected) < 0.1 * np.linalg.norm(expected)


def test_faults_are_sentences(tmp_path: Path, rng: np.random.Generator) -> None:
    def words(code: int, tensors: dict[str, Array], *options: str) -> str:
        save_file(tensors, tmp_path / "in.safetensors")
        return fail(code, "quantize", "--input", tmp_path / "in.safetensors", "--output", tmp_path / "o", *options)

    x = random(rng, (1, 4, 1, 20))
    whole = dict.fromkeys("qkv", x)
    assert "no tensor 'v'" in words(FILE_ERROR, {"q": x, "k": x})
    assert "it must have 4 axes" in words(FILE_ERROR, {**whole, "k": x[0]})
    assert "x.shape[3] is 20" in words(LIBRARY_REFUSED, whole, "--rotate")
    assert "x.dtype is e4m3" in words(LIBRARY_REFUSED, {**whole, "q": x.astype(ml_dtypes.float8_e4m3fn)})
    assert "row" in words(USAGE_ERROR, whole, "--granularity", "row")
    assert "runs on the CPU only" in words(USAGE_ERROR, whole, "--device", "cuda")
    assert not (tmp_path / "o").exists()
