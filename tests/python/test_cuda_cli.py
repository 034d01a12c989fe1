"""The program `tandem` on a Hopper GPU. TANDEM_CLI names the built program."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy_reference import Problem, assert_close, assert_lse_close, solve

safetensors = pytest.importorskip("safetensors.numpy")

PROGRAM = os.environ.get("TANDEM_CLI", "")
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not PROGRAM, reason="TANDEM_CLI does not name the built program")]


def succeed(*arguments: object) -> str:
    words = [str(argument) for argument in arguments]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_info_names_the_gpu() -> None:
    info = json.loads(succeed("info", "--json"))
    assert info["gpu"]["available"]
    assert "SMs" in info["gpu"]["description"]


def test_verify() -> None:
    text = succeed("verify", "--device", "cuda", "--seed", 5, "--cases", 150)
    assert text.startswith("verifying sm90")
    passed, failed, refused = (int(text.splitlines()[-1].split()[i]) for i in (0, 2, 4))
    assert failed == 0
    assert passed > 3 * refused


def test_bench() -> None:
    size = ("--headdim", "64,128", "--seqlen", "256,1024", "--dtype", "bf16,fp16", "--causal", "--seconds", 0.05)
    lines = [json.loads(line) for line in succeed("bench", "--device", "cuda", "--json", *size).splitlines()]
    assert [(line["op"], line["dtype"], line["headdim"], line["seqlen_q"]) for line in lines] == [
        ("forward", dtype, headdim, seqlen)
        for dtype in ("bf16", "fp16")
        for headdim in (64, 128)
        for seqlen in (256, 1024)
    ]
    assert all(line["gpu"] and 0 < line["ms_min"] <= line["ms"] for line in lines)
    assert "sm90" in succeed("bench", "--device", "cuda:0", "--headdim", 64, "--seqlen", 128, "--seconds", 0.01)


def test_run(rng: np.random.Generator, tmp_path: Path) -> None:
    bf16 = ml_dtypes.bfloat16
    shapes = {"q": (2, 90, 4, 64), "k": (2, 130, 2, 64), "v": (2, 130, 2, 64)}
    tensors = {name: rng.standard_normal(shape).astype(bf16) for name, shape in shapes.items()}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    files = ("--input", tmp_path / "x.safetensors", "--output", tmp_path / "y.safetensors")
    assert "forward on sm90" in succeed("run", *files, "--device", "cuda", "--causal")
    results = safetensors.load_file(tmp_path / "y.safetensors")
    problem = Problem(**tensors, options={"causal": True})
    exact, plain = solve(problem), solve(problem, dtype=bf16)
    assert_close("out", results["out"], exact.out, plain.out, bf16)
    assert_lse_close(results["lse"], exact.lse)
