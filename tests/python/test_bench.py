"""bench/compare.py: the work of its cells, its statistics and tables, the C interface as it calls it."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_definition

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build"))
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

cells = importlib.import_module("cells")
compare = importlib.import_module("compare")
gpu_figures = importlib.import_module("gpu_figures")
measurements = importlib.import_module("measurements")
tandem_c = importlib.import_module("tandem_c")

# ------------------------------------------------------------------------------------------------------------- cells


def test_the_table_is_that_of_the_paper() -> None:
    table = cells.parse_cells("table")
    assert len(table) == len(set(table)) == 36
    assert all(cell.batch * cell.seqlen == 16384 and cell.nheads_q * cell.headdim == 2048 for cell in table)
    assert {cell.dtype for cell in table} == {"bf16"}


def test_names_give_cells_and_cells_their_names() -> None:
    (cell,) = cells.parse_cells("192/128:causal:4096:32/8:fp16:packed")
    assert cell == cells.Cell(192, 128, "causal", 4096, 4, 32, 8, "fp16", True)
    assert cell.name == "192/128:causal:4096:32/8:fp16:packed"
    everything = cells.parse_cells(",".join(cells.SETS))
    assert [cells.parse_cells(cell.name) for cell in everything] == [[cell] for cell in everything]
    assert [cells.Cell.of_record(cell.record()) for cell in everything] == everything


@pytest.mark.parametrize(
    "name", ["tables", "128:causal", "128:diagonal:512", "128:none:512:fp8", "x:none:512", "", "1:2:3:4:5"]
)
def test_what_is_no_cell_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is neither a cell"):
        cells.parse_cells(name)


def seen(cell: Any) -> torch.Tensor:
    """(seqlen, seqlen) booleans, by the words of the documents."""
    row, key = torch.arange(cell.seqlen)[:, None], torch.arange(cell.seqlen)[None]
    return {
        "none": torch.ones(cell.seqlen, cell.seqlen, dtype=torch.bool),
        "causal": key <= row,
        "window": (key <= row) & (key > row - cells.WINDOW),
        "documents": key // cells.DOCUMENT == row // cells.DOCUMENT,
        "prefix": (key < cell.seqlen // 4) | (key <= row),
    }[cell.mask]


@pytest.mark.parametrize("seqlen", [128, 200, 4096, 5000])
@pytest.mark.parametrize("mask", cells.ALL_MASKS)
def test_intervals_and_work(mask: str, seqlen: int) -> None:
    cell = cells.Cell(64, 32, mask, seqlen, batch=3, nheads_q=4, nheads_k=2)
    see = seen(cell)
    intervals = [cell.row_interval(row) for row in range(seqlen)]
    assert [int(row.sum()) for row in see] == [end - begin for begin, end in intervals]
    assert all(bool(see[row, begin]) and bool(see[row, end - 1]) for row, (begin, end) in enumerate(intervals))

    tiles = torch.nn.functional.max_pool2d(see[None].float(), 128, ceil_mode=True).sum().item()
    scores = {"none": seqlen**2, "causal": seqlen**2 / 2}.get(mask, tiles * 128**2)
    assert cell.flops() == 3 * 4 * scores * 2 * (64 + 32)


# -------------------------------------------------------------------------------------------------------- statistics


class Clock:
    """Every call takes as many milliseconds as its name says."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def wait(self) -> None:
        pass

    def milliseconds(self, call: Any) -> float:
        self.order.append(call())
        return float(self.order[-1])


def test_the_order_of_the_libraries_rotates() -> None:
    clock = Clock()
    times = compare.time_in_turn({name: lambda name=name: name for name in "123"}, clock, reps=4)
    assert "".join(clock.order) == "123231312123"
    assert times == {"1": [1.0] * 4, "2": [2.0] * 4, "3": [3.0] * 4}


CELL = cells.parse_cells("128:causal:4096")[0]


def line(run: str, library: str, milliseconds: float, cell: Any = CELL, variant: str = "") -> dict[str, Any]:
    where = {"run": run, "date": "2026-12-01", "commit": "abc", "gpu": "a GPU", "driver": "1"}
    return {**where, "op": "forward", **cell.record(), "library": library, "variant": variant, "ms": milliseconds}


def product(run: str, tflops: float) -> dict[str, Any]:
    return {"run": run, "op": "matmul", "tflops": tflops}


def at_rate(run: str, library: str, tflops: float, cell: Any = CELL) -> dict[str, Any]:
    return line(run, library, cell.flops() / tflops / 1e9, cell)


def of_op(op: str, record: dict[str, Any]) -> dict[str, Any]:
    return record | {"op": op}


def the_process(lines: list[dict[str, Any]], op: str = "forward") -> Any:
    (found,) = measurements.by_process(lines, op).values()
    return found


def test_medians_and_ratios_of_passes() -> None:
    found = the_process([
        line("b/1", "tandem", 2.0), line("b/1", "cudnn", 3.0), line("b/1", "cudnn", 8.0, variant="graph API"),
        line("b/2", "tandem", 4.0), line("b/2", "cudnn", 8.0),
        line("b/3", "tandem", 9.0), line("b/3", "cudnn", 9.0),
    ])[CELL]  # fmt: skip
    assert (found.ms("tandem"), found.ms("cudnn"), found.ms("cudnn (graph API)")) == (4.0, 8.0, 8.0)
    assert found.tflops("tandem") == 4 * 4 * 16 * 4096**2 * 128 / 2 / 4e-3 / 1e12
    assert found.ratio("cudnn") == 1.5  # of 1.5, 2 and 1
    assert found.ratio("cudnn (graph API)") == 4.0
    assert found.ratio("fa2") is None


def test_anchors_are_scaled_by_what_cudnn_gives() -> None:
    anchors = measurements.Anchors()
    there = {name: anchors.tflops(CELL, name) for name in ("cudnn", "fa3", "goal")}
    assert there == {"cudnn": 530, "fa3": 614, "goal": 707}
    found = the_process([at_rate("a/1", "tandem", 300), at_rate("a/1", "cudnn", 265)])[CELL]  # half as fast
    assert anchors.ratio(found, "fa3") == pytest.approx(300 / 307)
    assert anchors.ratio(found, "goal") == pytest.approx(300 / 353.5)

    found = the_process([product("a/1", 320), at_rate("a/1", "tandem", 300), at_rate("a/1", "cudnn", 265)])[CELL]
    assert anchors.ratio(found, "goal") == pytest.approx(300 / 320)  # no more than the card's matrix product
    assert anchors.ratio(found, "fa3") == pytest.approx(300 / 307)

    alone = the_process([at_rate("a/1", "tandem", 300)])[CELL]
    assert anchors.ratio(alone, "fa3") is None
    for change in ({"dtype": "fp16"}, {"packed": True}, {"nheads_k": 4}, {"headdim_v": 64}, {"seqlen": 4000}):
        assert anchors.tflops(dataclasses.replace(CELL, **change), "fa3") is None


E4M3 = cells.parse_cells("128:causal:4096:e4m3")[0]


def test_anchors_of_e4m3_are_scaled_by_what_cudnn_gives_in_bf16() -> None:
    anchors = measurements.Anchors()
    assert {name: anchors.tflops(E4M3, name) for name in ("cudnn", "fa3", "goal")} == {
        "cudnn": 530, "fa3": 785, "goal": 903,
    }  # fmt: skip
    lines = [at_rate("a/1", "tandem", 700, E4M3), {**at_rate("a/1", "cudnn", 265, E4M3), "variant": "bf16"}]
    lines += [{**product("a/1", 400), "dtype": "bf16"}, {**product("a/1", 440), "dtype": "e4m3"}]
    found = the_process(lines)[E4M3]
    assert anchors.ratio(found, "fa3") == pytest.approx(700 / 392.5)
    assert anchors.ratio(found, "goal") == pytest.approx(700 / 440)  # no more than the card's fp8 matrix product


def test_figures_of_e4m3() -> None:
    def variant(library: str, name: str, tflops: float) -> dict[str, Any]:
        return {**at_rate("a/1", library, tflops, E4M3), "variant": name}

    lines = [variant("tandem", "", 800), variant("tandem", "from bf16", 600), variant("tandem", "bf16", 500)]
    lines += [variant("prototype", "transposed before", 1000)]
    table = gpu_figures.fp8_details(json.dumps(one) for one in lines)
    assert "| from bf16 | Tandem, bf16 | cuDNN, bf16 |" in table
    assert "control (transposed before)" in table
    assert (
        "| 128 | causal | 4096 | 800 | - (-) | - (-) | 600 (1.33) | 500 (1.60) | - (-) | - (-) | 1000 (0.80) |" in table
    )
    assert table.endswith("| 1.20 |\n")
    assert gpu_figures.fp8_details([json.dumps(at_rate("a/1", "tandem", 300))]) == ""


def test_rates_and_anchors_of_the_backward() -> None:
    lines = [
        of_op("backward", line("a/1", "tandem", 2.0)), of_op("backward", line("a/1", "cudnn", 3.0)),
        of_op("forward_backward", line("a/1", "tandem", 4.0)), line("a/1", "tandem", 9.0),
    ]  # fmt: skip
    found = the_process(lines, "backward")[CELL]
    assert found.ratio("cudnn") == 1.5
    assert found.tflops("tandem") == 2.5 * CELL.flops() / 2.0 / 1e9
    assert the_process(lines, "forward_backward")[CELL].tflops("tandem") == 3.5 * CELL.flops() / 4.0 / 1e9
    anchors = measurements.Anchors()
    forward, backward, both = (anchors.tflops(CELL, "fa3", op) for op in ("forward", "backward", "forward_backward"))
    assert both == pytest.approx(3.5 / (1 / forward + 2.5 / backward))
    there = anchors.tflops(CELL, "cudnn", "backward")
    assert anchors.ratio(found, "fa3") == pytest.approx(1.5 * there / backward)


def test_anchors_are_complete() -> None:
    figures = measurements.Anchors().figures
    for operation in ("forward", "backward"):
        assert len(figures[operation]) == 6
        for rows in figures[operation].values():
            assert {len(values) for values in rows.values()} == {6}
            assert set(rows) == {"fa2", "cudnn", "cudnn graph", "fa3", "goal"}


def test_cells_are_held_against_others_of_their_process() -> None:
    plain, window, fp16, dim64, dim96 = cells.parse_cells(
        "128:none:16384,128:window:16384,128:none:16384:fp16,64:none:16384,96:none:16384"
    )
    lines = [
        at_rate("a/1", "tandem", rate, cell)
        for cell, rate in ((plain, 600), (window, 480), (fp16, 594), (dim64, 400), (dim96, 475))
    ]
    found = {relation.cell: relation for relation in measurements.relations(the_process(lines))}
    assert {cell: relation.ratio for cell, relation in found.items()} == {
        window: pytest.approx(0.8), fp16: pytest.approx(0.99), dim96: pytest.approx(0.95)
    }  # fmt: skip
    table = measurements.relation_table(the_process(lines))
    assert [row for row in table.splitlines() if "below" in row] == [
        "mask to none, by tiles touched: 128:window:16384:16/16 / 128:none:16384:16/16 = 0.800  below 0.85"
    ]
    later = measurements.by_process([*lines, at_rate("b/1", "tandem", 480, window)])["b"]
    assert measurements.relations(later) == []


def test_compact_table() -> None:
    lines = [at_rate("a/1", "tandem", 550), at_rate("a/1", "cudnn", 500), at_rate("a/1", "prototype", 600)]
    head, row, *_ = measurements.compact_table(the_process(lines), measurements.Anchors()).splitlines()
    assert head.split() == ["cell", "tandem", "/cudnn", "/prototype", "/FA3*", "/goal*"]
    assert row.split() == [CELL.name, "550", "1.10", "0.92", "0.95", "0.82"]


# ------------------------------------------------------------------------------------------------------------ figures


def whole_table() -> list[str]:
    lines = [product("a/1", 750.0)]
    for cell in cells.parse_cells("table,128:none:16384:fp16"):
        lines += [
            at_rate("a/1", "tandem", 600, cell),
            at_rate("a/1", "cudnn", 500, cell),
            at_rate("a/1", "fa2", 300, cell),
        ]
    return [json.dumps(record) for record in lines]


def test_readme_section() -> None:
    rows = gpu_figures.summary(whole_table()).splitlines()
    assert rows[0] == "## Speed on a Hopper GPU"
    assert "| 64 | causal |" + " 600 (1.20) |" * 6 in rows
    assert sum(row.startswith("| ") and "(1.20)" in row for row in rows) == 6


def test_the_table_is_of_the_last_process_that_timed_all_of_it() -> None:
    later = [json.dumps(at_rate("b/1", name, rate)) for name, rate in (("tandem", 400), ("cudnn", 500))]
    assert gpu_figures.summary([*whole_table(), *later]) == gpu_figures.summary(whole_table())
    rows = gpu_figures.summary([*whole_table()[:30], *later]).splitlines()
    assert any(row.startswith("| 128 | causal |") and " 400 (0.80) " in row for row in rows)


def test_processes_without_tandem_count_for_nothing() -> None:
    assert measurements.by_process([line("a/1", "cudnn", 1.0)]) == {"a": {}}


def test_details() -> None:
    rows = gpu_figures.details(whole_table()).splitlines()
    assert "| 128 | causal | 4096 | 600 | 500 | 1.20 | 300 | 2.00 | 1.04 | 0.90 | - |" in rows
    assert any(row.startswith("| 128:none:16384:16/16:fp16 | 600 | cuDNN 500 (1.20), FA2 300 (2.00) |") for row in rows)


def backward_table() -> list[str]:
    lines = []
    for cell in cells.parse_cells("table"):
        for op, share in (("backward", 1.0), ("forward_backward", 1.25)):
            for name, rate, variant in (("tandem", 500, ""), ("cudnn", 400, ""), ("tandem", 450, "deterministic")):
                ms = share * cell.flops(op) / rate / 1e9
                lines.append(of_op(op, line("a/1", name, ms, cell, variant)))
    return [json.dumps(record) for record in lines]


def test_figures_of_the_backward() -> None:
    assert "| 64 | none |" + " 500 (1.25) |" * 6 in gpu_figures.backward_summary(backward_table()).splitlines()
    first, second = gpu_figures.backward_details(backward_table()).split("### Forward and backward")
    row = next(
        row for row in first.splitlines() if row.startswith("| 128 | causal | 4096 | 500 | 400 | 1.25 | - | - |")
    )
    assert row.endswith("| - | 1.11 |")  # no control; 500 / 450
    assert "| 128 | causal | 4096 | 400 | 320 | 1.25 |" in second
    picture = ElementTree.fromstring(gpu_figures.backward_chart(backward_table()))
    assert len(picture.findall("{http://www.w3.org/2000/svg}g")) == 6


def test_eager_calls_are_the_last_of_each_device() -> None:
    where = {"device": "cuda", "processor": "a GPU", "torch": "2", "commit": "abc"}
    times = [("tandem", 9.0), ("sdpa", 8.0), ("tandem", 5.0)]
    lines = [json.dumps({**where, "call": call, "us": us, "us_min": us - 1, "us_max": us + 1}) for call, us in times]
    assert gpu_figures.eager_calls(lines).splitlines()[2:] == [
        "| cuda (a GPU) | sdpa | 8.0 | 7.0, 9.0 | 2 | abc |",
        "| cuda (a GPU) | tandem | 5.0 | 4.0, 6.0 | 2 | abc |",
    ]


def test_chart_has_a_bar_for_each_figure() -> None:
    picture = ElementTree.fromstring(gpu_figures.chart(whole_table()))
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}g")) == 6
    bars = picture.findall(f"{space}g/{space}rect")
    assert len(bars) == 36 * 3
    heights = {bar.get("fill"): float(bar.get("height", "")) for bar in bars}
    tandem, cudnn, fa2 = (heights[gpu_figures.COLORS[name]] for name in ("Tandem", "cuDNN", "FA2"))
    assert tandem / fa2 == pytest.approx(2, abs=0.01)
    assert cudnn / fa2 == pytest.approx(5 / 3, abs=0.01)


# ----------------------------------------------------------------------------------------------------- the C interface


@pytest.fixture(scope="module")
def tandem() -> Any:
    library = BUILD / "libtandem.so"
    assert library.exists(), f"{library} is not there: './run build' makes it"
    return tandem_c.Tandem(library)


@pytest.mark.parametrize("operation", tandem_c.PARAMS)
def test_params_are_of_the_size_that_the_library_knows(tandem: Any, operation: str) -> None:
    kind = tandem_c.PARAMS[operation]
    check = getattr(tandem.library, f"tandem_{operation}_check")
    check(ctypes.byref(kind(struct_size=8)))
    assert f"which is {ctypes.sizeof(kind)} in version" in tandem.last_error()


def used_options(heads: int, rows: int) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, float]]:
    """Tensors, mask and numbers that stand all over the structs."""
    tensors = {
        "sink": torch.randn(heads),
        "seqused_q": torch.tensor([rows, rows - 3], dtype=torch.int32),
        "seqused_k": torch.tensor([rows, rows - 5], dtype=torch.int32),
    }
    mask = {
        "causal": 1, "top_left": 1, "has_window": 1, "window_left": 17, "window_right": -1, "attention_chunk": 16,
        "lo": torch.randint(0, 8, (1, 1, rows), dtype=torch.int32),
        "hi": torch.randint(24, 40, (1, heads, rows), dtype=torch.int32),
    }  # fmt: skip
    return tensors, mask, {"softmax_scale": 0.3, "has_softmax_scale": 1, "softcap": 5.0}


def test_every_field_is_where_the_library_reads_it(tandem: Any) -> None:
    """Forward and backward, with all options at once, against the definition and torch's derivatives of it."""
    torch.manual_seed(3)
    rows, heads = 40, 4
    q, k, v = torch_definition.inputs(2, rows, rows, heads, 2, 16, 8, torch.float32)
    extra, mask, numbers = used_options(heads, rows)
    sink = extra["sink"].requires_grad_()

    see = torch_definition.visible(rows, rows, causal=True, window=(17, -1), attention_chunk=16, alignment="top-left")
    key = torch.arange(rows)
    see = (
        see & (key >= mask["lo"][..., None]) & (key < mask["hi"][..., None]) & torch.ones(2, 1, 1, 1, dtype=torch.bool)
    )
    see = (
        see & (key < extra["seqused_k"][:, None, None, None]) & (key[:, None] < extra["seqused_q"][:, None, None, None])
    )
    out, lse = torch_definition.attention(q, k, v, see, softmax_scale=0.3, softcap=5.0, sink=sink)
    inside = key[None] < extra["seqused_q"][:, None]
    out = out * inside[..., None, None]
    dout, dlse = torch.randn_like(out), torch.randn_like(lse) * inside[:, None]
    expected = torch_definition.gradients((out, lse), (q, k, v, sink), (dout, dlse))

    tensors = {"q": q, "k": k, "v": v, "out": torch.full((2, rows, heads, 8), torch.nan), **extra}
    tensors["lse"] = torch.full((2, heads, rows), torch.nan)
    tandem.prepared_call("forward", tensors, mask, **numbers)()
    torch.testing.assert_close(tensors["out"].double(), out, atol=2e-6, rtol=1e-5)
    where = inside[:, None].expand_as(lse)
    torch.testing.assert_close(tensors["lse"].double()[where], lse[where], atol=2e-6, rtol=1e-5)

    results = {f"d{name}": torch.full_like(tensors[name], torch.nan) for name in ("q", "k", "v", "sink")}
    given = {"dout": dout.float(), "dlse": dlse.float()}
    tandem.prepared_call("backward", tensors | given | results, mask, **numbers)()
    for found, value in zip(results.values(), expected, strict=True):
        torch.testing.assert_close(found.double(), value.double(), atol=1e-5, rtol=1e-4)


def test_packed_fields_are_where_the_library_reads_them(tandem: Any) -> None:
    torch.manual_seed(4)
    q, k, v = (x[0].detach() for x in torch_definition.inputs(1, 30, 37, 4, 2, 16, 8, torch.float32))
    offsets_q, offsets_k = (0, 9, 30), (0, 20, 37)
    tensors = {
        "q": q, "k": k, "v": v, "out": torch.full((30, 4, 8), torch.nan), "lse": torch.full((4, 30), torch.nan),
        "cu_seqlens_q": torch.tensor(offsets_q, dtype=torch.int32),
        "cu_seqlens_k": torch.tensor(offsets_k, dtype=torch.int32),
    }  # fmt: skip
    tandem.prepared_call("varlen_forward", tensors, {"causal": 1}, max_seqlen_q=21, max_seqlen_k=20)()
    dout = torch.randn(30, 4, 8)
    results = {f"d{name}": torch.full_like(tensors[name], torch.nan) for name in ("q", "k", "v")}
    tandem.prepared_call("varlen_backward", tensors | {"dout": dout} | results, {"causal": 1})()
    for begin_q, end_q, begin_k, end_k in zip(offsets_q, offsets_q[1:], offsets_k, offsets_k[1:], strict=False):
        of_q, of_k = slice(begin_q, end_q), slice(begin_k, end_k)
        parts = tuple(x[None, of].double().requires_grad_() for x, of in ((q, of_q), (k, of_k), (v, of_k)))
        see = torch_definition.visible(end_q - begin_q, end_k - begin_k, causal=True)
        out, lse = torch_definition.attention(*parts, see)
        torch.testing.assert_close(tensors["out"][of_q].double(), out[0], atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(tensors["lse"][:, of_q].double(), lse[0], atol=2e-6, rtol=1e-5)
        expected = torch_definition.gradients(out, parts, (dout[None, of_q].double(),))
        for found, value, of in zip(results.values(), expected, (of_q, of_k, of_k), strict=True):
            torch.testing.assert_close(found[of].double(), value[0], atol=1e-5, rtol=1e-4)
