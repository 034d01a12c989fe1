"""The program `tandem`, run as a user would: files written by NumPy and safetensors, results against float64 NumPy.

TANDEM_CLI names the built program.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy_reference import Array, Problem, assert_close, assert_lse_close, solve
from safetensors.numpy import load_file, save_file

PROGRAM = os.environ.get("TANDEM_CLI", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="TANDEM_CLI does not name the built program")

VERIFICATION_FAILED, USAGE_ERROR, FILE_ERROR, LIBRARY_REFUSED = 1, 2, 3, 4


def run_program(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [str(argument) for argument in arguments]
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=300, check=False)


def succeed(*arguments: object) -> str:
    done = run_program(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def fail(code: int, *arguments: object) -> str:
    """The sentence on stderr."""
    done = run_program(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.startswith("tandem: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def save_npy(folder: Path, tensors: Mapping[str, Array]) -> list[str]:
    """Writes NAME.npy files; returns the options that name them."""
    options = []
    for name, values in tensors.items():
        np.save(folder / f"{name}.npy", values)
        options += [f"--{name.replace('_', '-')}", str(folder / f"{name}.npy")]
    return options


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture
def dense(rng: np.random.Generator) -> dict[str, Array]:
    shapes = {"q": (2, 9, 4, 24), "k": (2, 13, 2, 24), "v": (2, 13, 2, 16)}
    return {name: random(rng, shape) for name, shape in shapes.items()}


@pytest.fixture
def packed(rng: np.random.Generator) -> dict[str, Array]:
    tensors = {name: random(rng, (20, 2, 8)) for name in "qkv"}
    return tensors | {f"cu_seqlens_{x}": np.array([0, 7, 7, 18], np.int32) for x in "qk"}


# ---------------------------------------------------------------------------------------------------------------- run

MASKS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "none": ([], {}),
    "causal": (["--causal"], {"causal": True}),
    "top left": (["--causal", "--top-left"], {"causal": True, "alignment": "top-left"}),
    "window": (["--window", "3,1"], {"window": (3, 1)}),
    "open window": (["--window", "-1,2"], {"window": (-1, 2)}),
    "chunk": (["--chunk", "5"], {"attention_chunk": 5}),
    "scale": (["--scale", "-0.3"], {"softmax_scale": -0.3}),
    "softcap": (["--softcap", "1.5"], {"softcap": 1.5}),
}


@pytest.mark.parametrize("name", MASKS)
def test_run_npy(name: str, dense: dict[str, Array], tmp_path: Path) -> None:
    flags, options = MASKS[name]
    files = save_npy(tmp_path, dense)
    succeed("run", *files, "--out", tmp_path / "o.npy", "--lse", tmp_path / "lse.npy", *flags)
    problem = Problem(**dense, options=options)
    exact, plain = solve(problem), solve(problem, dtype=np.float32)
    assert_close("out", np.load(tmp_path / "o.npy"), exact.out, plain.out, np.float32)
    assert_lse_close(np.load(tmp_path / "lse.npy"), exact.lse)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_run_npy_types(dtype: Any, dense: dict[str, Array], tmp_path: Path) -> None:
    tensors = {name: values.astype(dtype) for name, values in dense.items()}
    succeed("run", *save_npy(tmp_path, tensors), "--out", tmp_path / "o.npy", "--threads", 2)
    out = np.load(tmp_path / "o.npy")
    assert out.dtype == dtype
    problem = Problem(**tensors)
    assert_close("out", out, solve(problem).out, solve(problem, dtype=dtype).out, dtype)


def test_run_safetensors_bf16_backward(dense: dict[str, Array], rng: np.random.Generator, tmp_path: Path) -> None:
    bf16 = ml_dtypes.bfloat16
    tensors = {name: values.astype(bf16) for name, values in dense.items()}
    sink, dout = random(rng, (4,)), random(rng, (2, 9, 4, 16), bf16)
    save_file(tensors | {"sink": sink, "dout": dout}, tmp_path / "x.safetensors")
    succeed(
        "run", "--input", tmp_path / "x.safetensors", "--output", tmp_path / "y.safetensors", "--causal", "--backward"
    )
    results = load_file(tmp_path / "y.safetensors")
    assert set(results) == {"out", "lse", "dq", "dk", "dv", "dsink"}
    problem = Problem(**tensors, options={"causal": True, "sink": sink})
    exact, plain = solve(problem, dout), solve(problem, dout, dtype=bf16)
    assert_lse_close(results["lse"], exact.lse)
    for name in ("out", "dq", "dk", "dv"):
        assert results[name].dtype == bf16
        assert_close(name, results[name], getattr(exact, name), getattr(plain, name), bf16)
    assert exact.dsink is not None
    np.testing.assert_allclose(results["dsink"], exact.dsink, rtol=0.05, atol=0.05)


def test_run_mixes_files(dense: dict[str, Array], tmp_path: Path) -> None:
    """bf16 comes in by safetensors and leaves as fp32 .npy."""
    tensors = {name: values.astype(ml_dtypes.bfloat16) for name, values in dense.items()}
    save_file(tensors, tmp_path / "x.safetensors")
    source = ("run", "--input", tmp_path / "x.safetensors", "--out", tmp_path / "o.npy")
    assert ".npy cannot hold bf16" in fail(USAGE_ERROR, *source)
    succeed(*source, "--out-dtype", "fp32")
    exact = solve(Problem(**tensors)).out
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), exact, rtol=1e-5, atol=1e-5)


def test_run_packed_with_intervals(packed: dict[str, Array], tmp_path: Path) -> None:
    lo = np.tile(np.arange(20, dtype=np.int64) % 4, (1, 1))  # int64, NumPy's own default
    flags = ["--causal", "--backward", "--checked", "--output", tmp_path / "y.safetensors"]
    dout = packed["q"][::-1].copy()
    succeed("run", *save_npy(tmp_path, packed | {"lo": lo, "dout": dout}), *flags)
    results = load_file(tmp_path / "y.safetensors")
    problem = Problem(**packed, options={"causal": True, "lo": lo})
    exact, plain = solve(problem, dout), solve(problem, dout, dtype=np.float32)
    assert (results["out"][18:] == 0).all()
    assert (results["dk"][18:] == 0).all()
    assert_lse_close(results["lse"], exact.lse)
    for name in ("out", "dq", "dk", "dv"):
        assert_close(name, results[name], getattr(exact, name), getattr(plain, name), np.float32)


@pytest.mark.parametrize("backend", ["auto", "reference", "tiled"])
def test_run_seqused(backend: str, dense: dict[str, Array], tmp_path: Path) -> None:
    used = np.array([13, 4], np.int32)
    dense["k"][1, 4:] = np.nan
    files = save_npy(tmp_path, dense | {"seqused_k": used})
    succeed("run", *files, "--backend", backend, "--out", tmp_path / "o.npy")
    problem = Problem(**dense, options={"seqused_k": used})
    exact, plain = solve(problem), solve(problem, dtype=np.float32)
    assert_close("out", np.load(tmp_path / "o.npy"), exact.out, plain.out, np.float32)


# ------------------------------------------------------------------------------------------------------------- errors


def test_usage_errors(dense: dict[str, Array], tmp_path: Path) -> None:
    files = save_npy(tmp_path, dense)
    out = tmp_path / "o.npy"
    assert "--frob" in fail(USAGE_ERROR, "run", "--frob")
    assert "subcommand" in fail(USAGE_ERROR)
    assert "'foo' is not a subcommand" in fail(USAGE_ERROR, "foo")
    assert "'foo' is not a subcommand" in fail(USAGE_ERROR, "foo", "--bar")
    for option in ("--chunk", "--window"):
        numbers = "9" * 20 if option == "--chunk" else f"3,{'9' * 20}"
        assert "does not fit into 64 bits" in fail(USAGE_ERROR, "run", *files, "--out", out, option, numbers)
    assert "does not fit into 64 bits" in fail(USAGE_ERROR, "bench", "--seqlen", "9" * 20)
    assert "does not fit into 64 bits" in fail(USAGE_ERROR, "verify", "--seed", 2**64)
    assert "'gpu' is not a device" in fail(USAGE_ERROR, "bench", "--device", "gpu")
    assert "'cuda:x' is not a device" in fail(USAGE_ERROR, "run", *files, "--out", out, "--device", "cuda:x")
    assert "--backend" in fail(USAGE_ERROR, "run", *files, "--out", out, "--backend", "gpu")
    assert "--window" in fail(USAGE_ERROR, "run", *files, "--out", out, "--window", "3")
    assert "--out or --output" in fail(USAGE_ERROR, "run", *files)
    assert "needs --v" in fail(USAGE_ERROR, "run", *files[:4], "--out", out)
    assert "--dq needs --backward" in fail(USAGE_ERROR, "run", *files, "--out", out, "--dq", tmp_path / "dq.npy")
    for other in (out, tmp_path / "." / ".." / tmp_path.name / out.name):
        assert "two results would go to" in fail(USAGE_ERROR, "run", *files, "--out", out, "--lse", other)
    assert "not in range 0 to 2147483647" in fail(USAGE_ERROR, "run", *files, "--out", out, "--threads", "-1")
    assert "drop --k" in fail(USAGE_ERROR, "run", *files, "--input", "x.safetensors", "--out", out)
    assert "'fp31' is not a type" in fail(USAGE_ERROR, "run", *files, "--out", out, "--out-dtype", "fp31")
    assert "'int8' is not a type" in fail(USAGE_ERROR, "bench", "--dtype", "int8")
    assert not out.exists()


def test_file_errors(dense: dict[str, Array], tmp_path: Path) -> None:
    files = save_npy(tmp_path, dense)
    out = tmp_path / "o.npy"
    run = ("run", *files[:4], "--v", tmp_path / "other.npy", "--out", out)
    assert "does not exist" in fail(FILE_ERROR, *run)
    np.save(tmp_path / "other.npy", np.asfortranarray(dense["v"]))
    assert "Fortran order" in fail(FILE_ERROR, *run)
    np.save(tmp_path / "other.npy", dense["v"].astype(">f4"))
    assert "big-endian" in fail(FILE_ERROR, *run)
    np.save(tmp_path / "other.npy", np.array([{}], object))
    assert "dtype |O" in fail(FILE_ERROR, *run)
    np.save(tmp_path / "other.npy", dense["v"].astype(ml_dtypes.bfloat16))
    assert ".npy has no bf16" in fail(FILE_ERROR, *run)
    np.save(tmp_path / "other.npy", dense["v"][0])
    assert "v has shape (13, 2, 16)" in fail(FILE_ERROR, *run)
    (tmp_path / "other.npy").write_bytes(Path(files[5]).read_bytes()[:-1])
    assert "needs 3328 bytes of data, but it has 3327" in fail(FILE_ERROR, *run)
    assert "No such file" in fail(FILE_ERROR, "run", *files, "--out", tmp_path / "missing" / "o.npy")
    assert "not a regular file" in fail(FILE_ERROR, "run", *files, "--out", "/dev/null")
    assert not out.exists()


def test_safetensors_errors(dense: dict[str, Array], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    run = ("run", "--input", path, "--output", tmp_path / "y.safetensors")
    save_file({"q": dense["q"], "k": dense["k"]}, path)
    assert "no tensor 'v'" in fail(FILE_ERROR, *run)
    save_file(dense | {"sinks": dense["q"]}, path)
    assert "tensor 'sinks' is none of the inputs" in fail(FILE_ERROR, *run)
    save_file(dense, path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "bytes of data" in fail(FILE_ERROR, *run)
    path.write_bytes(b"not safetensors")
    assert "cannot hold" in fail(FILE_ERROR, *run)
    assert not (tmp_path / "y.safetensors").exists()


def test_library_refusals(dense: dict[str, Array], packed: dict[str, Array], tmp_path: Path) -> None:
    files = save_npy(tmp_path, dense)
    out = tmp_path / "o.npy"
    out.write_bytes(b"kept")
    assert "window_left" in fail(LIBRARY_REFUSED, "run", *files, "--out", out, "--window", "-5,0")
    assert "TANDEM_" in fail(LIBRARY_REFUSED, "run", *files, "--out", out, "--backend", "sm90")
    (tmp_path / "packed").mkdir()
    bad = packed | {"cu_seqlens_k": np.array([0, 9, 7, 18], np.int32)}
    files = save_npy(tmp_path / "packed", bad)
    assert "cu_seqlens_k" in fail(LIBRARY_REFUSED, "run", *files, "--out", out, "--checked")
    assert out.read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.npy", "o.npy", "packed", "q.npy", "v.npy"]


def test_devices_that_cannot_serve(dense: dict[str, Array], tmp_path: Path) -> None:
    files = save_npy(tmp_path, dense)
    for command in (("run", *files, "--out", tmp_path / "o.npy"), ("verify", "--quick"), ("bench",)):
        assert "TANDEM_NO_DEVICE" in fail(LIBRARY_REFUSED, *command, "--device", "cuda:1000")
    assert not (tmp_path / "o.npy").exists()


# ------------------------------------------------------------------------------------------------ info, verify, bench


def test_help_states_exit_codes() -> None:
    text = succeed("--help")
    for line in (
        "0  success",
        "1  verification failed",
        "2  usage error",
        "3  an input",
        "4  the library",
        "5  internal",
    ):
        assert line in text


def test_info() -> None:
    info = json.loads(succeed("info", "--json"))
    assert info["version"] == succeed("--version").strip()
    backends = {backend["name"]: backend for backend in info["backends"]}
    assert set(backends) == {"reference", "tiled", "sm90"}
    assert backends["reference"]["available"] is True
    assert backends["tiled"]["available"] is True
    assert info["default_cpu_backend"] == "tiled"
    assert all(backend["description"] for backend in backends.values())
    assert info["gpu"]["available"] or info["gpu"]["description"]
    text = succeed("info")
    assert info["version"] in text
    assert backends["tiled"]["description"] in text


def test_verify_quick() -> None:
    text = succeed("verify", "--quick", "--seed", 5, "--backend", "tiled")
    assert "seed 5, 60 cases" in text
    assert " 0 failed" in text.splitlines()[-1]


def test_bench_json() -> None:
    size = ("--headdim", "16", "--seqlen", "32,48", "--heads", 4, "--heads-k", 2, "--batch", 2)
    options = ("--causal", "--dtype", "fp32,bf16", "--seconds", 0.01, "--threads", 1, "--run", "r1", "--commit", "abc")
    lines = [json.loads(line) for line in succeed("bench", "--json", *size, *options).splitlines()]
    assert [(line["op"], line["dtype"], line["seqlen_q"]) for line in lines] == [
        (op, dtype, seqlen) for op in ("forward", "backward") for dtype in ("fp32", "bf16") for seqlen in (32, 48)
    ]
    for line in lines:
        assert set(line) >= {"run", "date", "commit", "gpu", "driver", "headdim_v", "seqlen_k", "nheads_q", "gbps"}
        assert (line["library"], line["mask"], line["batch"], line["nheads_k"]) == ("tandem", "causal", 2, 2)
        assert (line["run"], line["commit"], line["variant"]) == ("r1", "abc", "")
        assert 0 < line["ms_min"] <= line["ms"] <= line["ms_max"]
        flops = 4 * 2 * 4 * line["seqlen_q"] ** 2 * 16 / 2 * (2.5 if line["op"] == "backward" else 1)
        assert line["tflops"] == pytest.approx(flops / line["ms"] * 1e-9, rel=0.02, abs=2e-6)


def test_bench_table() -> None:
    text = succeed("bench", "--op", "forward", "--headdim", 8, "--seqlen", 16, "--seconds", 0.01)
    assert "GFLOPS" in text
    assert text.splitlines()[-1].split()[:4] == ["forward", "fp32", "8", "16"]
