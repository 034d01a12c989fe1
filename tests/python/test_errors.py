"""bench/errors.py measures what it says, and its figures are drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import error_figures  # noqa: E402
import errors  # noqa: E402


def test_exact_is_attention_in_double() -> None:
    q, k, v = errors.random_inputs(5, 40, 16, torch.bfloat16, "cpu")
    out, shifted = errors.exact(q, k, [v, v + 1])
    expected = torch.nn.functional.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)))
    torch.testing.assert_close(out, expected.transpose(1, 2))
    assert out.dtype == torch.float64
    assert (shifted - out - 1).abs().max() < 0.02  # v + 1 is rounded to bf16


def test_inputs_have_outliers_and_depend_on_nothing_else() -> None:
    _, k, _ = errors.random_inputs(8, 4096, 64, torch.float16, "cpu")
    assert 7 < k.float().abs().max() < 60
    assert torch.equal(k, errors.random_inputs(8, 4096, 64, torch.float16, "cpu")[1])


def test_a_scale_per_tensor_puts_the_largest_at_448() -> None:
    x = torch.tensor([-448.0, 17.0, 1.0, 0.0009])
    assert errors.rounded_per_tensor(x).tolist() == [-448.0, 16.0, 1.0, 0.0]
    assert errors.rounded_per_tensor(2 * x).tolist() == [-896.0, 32.0, 2.0, 0.0]


def test_every_variant_of_a_small_cell() -> None:
    for dtype, variants in errors.VARIANTS.items():
        records = list(errors.measure(dtype, 64, 512, 128, "cpu"))
        assert [(r["v_mean"], r["variant"]) for r in records] == [(m, v) for m in (0, 1) for v in variants]
        rmse = {r["variant"]: r["rmse"] for r in records if r["v_mean"] == 0}
        assert 0 < rmse["tandem"] < rmse["plain"]
        assert all(r["rmse"] < r["max_error"] for r in records)


def line(variant: str, rmse: float, run: str = "a", dtype: str = "e4m3", mean: int = 0) -> str:
    record: dict[str, Any] = {
        "run": run, "date": "2026-11-30", "commit": "c", "gpu": "a CPU", "driver": "torch", "dtype": dtype,
        "headdim": 64, "seqlen_k": 1024, "v_mean": mean, "variant": variant, "rmse": rmse,
    }  # fmt: skip
    return json.dumps(record)


LINES = [
    line("plain", 0.5),
    line("plain", 0.02, run="b"),
    line("tandem", 0.01, run="b"),
    line("plain", 3e-4, dtype="fp16"),
    line("tandem", 2e-4, dtype="fp16"),
]


def test_table_of_errors_is_of_the_last_run() -> None:
    rows = error_figures.table(LINES).splitlines()
    assert "| 64 | 1k | 0 | 2.00e-02 | - | - | 1.00e-02 | 2.00 |" in rows
    assert "| 64 | 1k | 0 | 3.00e-04 | 2.00e-04 | 1.50 | - | - | - |" in rows


def test_chart_of_errors() -> None:
    root = ElementTree.fromstring(error_figures.chart([*LINES, line("tandem", 0.012, run="b", mean=1)]))
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"headdim 64, V, by keys", "headdim 64, V + 1, by keys", "200", "100", "120"} <= set(words)


def test_drift_is_of_the_last_run() -> None:
    record = {"model": "m", "texts": 3, "date": "d", "commit": "c", "against": "fp32", "model_dtype": "fp32"}
    figures = {"dtype": "e4m3", "rmse": 0.03, "max_error": 0.05, "same_neighbour": 0.95}
    lines = [json.dumps({**record, **figures, "run": run, "variant": "no_rotation"}) for run in ("a", "b")]
    expected = "| fp32 | e4m3 (no rotation) | fp32 | 0.0300 | 0.0500 | 95.0% |\n"
    assert error_figures.drift(lines).endswith(expected)
    assert error_figures.drift(lines).count("no rotation") == 1
