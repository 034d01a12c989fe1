#!/usr/bin/env python3
"""Writes the tables and charts of figures in the documents from the committed results of benchmarks.

    tools/figures.py            writes the documents and charts
    tools/figures.py --check    fails if one is out of date

README.md: bench/results/cpu.jsonl, to which bench/cpu_compare.py appends; each row is the last run that timed it.
README.md, docs/SPEED.md, docs/speed_forward.svg: bench/results/forward.jsonl (bench/compare.py); see gpu_figures.py.
docs/SPEED.md: bench/results/forward_fp8.jsonl, of the same program: its cells in e4m3.
README.md, docs/SPEED.md, docs/speed_backward.svg: bench/results/backward.jsonl, of the same program.
docs/TRAINING.md, docs/training.svg: bench/results/training.jsonl (bench/train.py).
docs/SPEED.md: bench/results/eager_overhead.jsonl (bench/eager_overhead.py).
docs/ACCURACY.md, docs/errors_fp8.svg: bench/results/errors.jsonl (bench/errors.py) and errors_model.jsonl
(bench/model_drift.py); see error_figures.py.
docs/TUNING.md: bench/results/cpu_tiles.jsonl, to which bench/cpu_tiles.py appends; the commit timed last.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench")]

import error_figures  # noqa: E402
import gpu_figures  # noqa: E402
import training_figures  # noqa: E402

END = "<!-- end of figures -->\n"
CASE_FIELDS = ("dtype", "batch", "seqlen_q", "nheads_q", "headdim", "memory", "mask", "op")
OPERATIONS = ("forward", "backward")

Record = dict[str, Any]


def latest_pairs(lines: list[str]) -> dict[tuple[Any, ...], dict[str, Record]]:
    """{case: {library: record}}, both records from the same run, the last that has both."""
    runs: dict[tuple[Any, ...], dict[str, dict[str, Record]]] = {}
    for line in filter(str.strip, lines):
        record = json.loads(line)
        case = tuple(record[field] for field in CASE_FIELDS)
        by_run = runs.setdefault(case, {})
        by_run.setdefault(record["run"], {})[record["library"]] = record
    pairs = {case: [run for run in by_run.values() if {"tandem", "torch"} <= set(run)] for case, by_run in runs.items()}
    return {case: complete[-1] for case, complete in pairs.items() if complete}


def cell(pair: dict[str, Record]) -> str:
    ours, theirs = pair["tandem"], pair["torch"]
    return f"{ours['ms']:.1f} | {theirs['ms']:.1f} | {theirs['ms'] / ours['ms']:.2f}"


def table(lines: list[str]) -> str:
    pairs = latest_pairs(lines)
    machines = {f"{pair['tandem']['gpu']}, {pair['tandem']['driver']}" for pair in pairs.values()}
    commits = {pair["tandem"]["commit"] for pair in pairs.values()}
    rows = [
        f"Milliseconds, medians, both libraries interleaved in one process ({'; '.join(sorted(machines))}; "
        f"commit {', '.join(sorted(commits))}). Ratio: PyTorch's time over Tandem's. Both read the same memory: bshd is"
        " (batch, seqlen, heads, headdim), bhsd has the heads outside. `./run bench` measures again.",
        "",
        "| dtype | batch, seqlen, heads, headdim | memory | mask "
        "| forward | PyTorch | ratio | backward | PyTorch | ratio |",
        "| --- | --- | --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for case in dict.fromkeys(case[:-1] for case in pairs):
        dtype, *shape, memory, mask = case
        found = [pairs.get((*case, operation)) for operation in OPERATIONS]
        cells = [cell(pair) if pair else "| |" for pair in found]
        rows.append(f"| {dtype} | {', '.join(map(str, shape))} | {memory} | {mask} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def tile_table(lines: list[str]) -> str:
    """One row per variant, one column per problem: time relative to the sources as committed."""
    records = [json.loads(line) for line in filter(str.strip, lines)]
    commits = [record["commit"] for record in records]
    records = [record for record in records if record["commit"] == commits[-1]]
    problems: dict[str, dict[str, float]] = {}
    for record in records:
        problem = f"{record['op']}, headdim {record['shape'][3]}" + (", causal" if record["mask"] == "causal" else "")
        problems.setdefault(problem, {})[record["variant"]] = record["ms_min"]
    variants = list(dict.fromkeys(record["variant"] for record in records))
    base = variants[0]
    last = records[-1]
    shapes = sorted({tuple(record["shape"]) for record in records})
    rows = [
        "Time over that of the sources as committed (first row: milliseconds), fastest of interleaved rounds, "
        f"{last['dtype']}, {last['threads']} threads, {last['cpu']}, commit {last['commit']}. "
        f"Shapes (batch, seqlen, heads, headdim): {', '.join(str(shape) for shape in shapes)}.",
        "",
        "| variant | " + " | ".join(problems) + " |",
        "| --- |" + " --: |" * len(problems),
        f"| {base} | " + " | ".join(f"{times[base]:.1f}" for times in problems.values()) + " |",
    ]
    for variant in variants[1:]:
        ratios = (f"{times[variant] / times[base]:.2f}" for times in problems.values())
        rows.append(f"| {variant} | " + " | ".join(ratios) + " |")
    return "\n".join(rows) + "\n"


TABLES = [
    ("README.md", "bench/results/cpu.jsonl", table),
    ("README.md", "bench/results/forward.jsonl", gpu_figures.summary),
    ("README.md", "bench/results/backward.jsonl", gpu_figures.backward_summary),
    ("docs/SPEED.md", "bench/results/forward.jsonl", gpu_figures.details),
    ("docs/SPEED.md", "bench/results/backward.jsonl", gpu_figures.backward_details),
    ("docs/SPEED.md", "bench/results/forward_fp8.jsonl", gpu_figures.fp8_details),
    ("docs/SPEED.md", "bench/results/eager_overhead.jsonl", gpu_figures.eager_calls),
    ("docs/ACCURACY.md", "bench/results/errors.jsonl", error_figures.table),
    ("docs/ACCURACY.md", "bench/results/errors_model.jsonl", error_figures.drift),
    ("docs/TRAINING.md", "bench/results/training.jsonl", training_figures.table),
    ("docs/TUNING.md", "bench/results/cpu_tiles.jsonl", tile_table),
]
CHARTS = [
    ("docs/speed_forward.svg", "bench/results/forward.jsonl", gpu_figures.chart),
    ("docs/speed_backward.svg", "bench/results/backward.jsonl", gpu_figures.backward_chart),
    ("docs/training.svg", "bench/results/training.jsonl", training_figures.chart),
    ("docs/errors_fp8.svg", "bench/results/errors.jsonl", error_figures.chart),
]


def with_table(document: str, source: str, text: str) -> str:
    """The document with the lines between the markers of `source` replaced."""
    begin = f"<!-- figures: {source} -->\n"
    before, rest = document.split(begin)
    _, after = rest.split(END, 1)
    return before + begin + text + END + after


def lines_of(source: str) -> list[str]:
    path = ROOT / source
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    expected: dict[Path, str] = {}
    for name, source, make_table in TABLES:
        path, lines = ROOT / name, lines_of(source)
        document = expected.get(path) or path.read_text(encoding="utf-8")
        expected[path] = with_table(document, source, make_table(lines) if lines else "")
    for name, source, make_chart in CHARTS:
        if lines := lines_of(source):
            expected[ROOT / name] = make_chart(lines)
    outdated = [path for path, text in expected.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in outdated:
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)}: the figures are out of date; tools/figures.py writes them")
        else:
            path.write_text(expected[path], encoding="utf-8")
    return 1 if outdated and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
