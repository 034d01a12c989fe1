#!/usr/bin/env python3
"""Writes the README's table of CPU figures from bench/results/cpu.jsonl, which bench/cpu_compare.py appends to.

    tools/readme_figures.py            writes README.md
    tools/readme_figures.py --check    fails if README.md is out of date

The table shows the last run in the file that timed each of its rows.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: bench/results/cpu.jsonl -->\n", "<!-- end of figures -->\n"
CASE_FIELDS = ("dtype", "batch", "seqlen_q", "nheads_q", "headdim", "mask", "op")
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
        f"commit {', '.join(sorted(commits))}). Ratio: PyTorch's time over Tandem's. `./run bench` measures again.",
        "",
        "| dtype | batch, seqlen, heads, headdim | mask | forward | PyTorch | ratio | backward | PyTorch | ratio |",
        "| --- | --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for case in dict.fromkeys(case[:-1] for case in pairs):
        dtype, *shape, mask = case
        found = [pairs.get((*case, operation)) for operation in OPERATIONS]
        cells = [cell(pair) if pair else "| |" for pair in found]
        rows.append(f"| {dtype} | {', '.join(map(str, shape))} | {mask} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def with_table(readme: str, lines: list[str]) -> str:
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table(lines) + END + after


def main() -> int:
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    expected = with_table(readme, (ROOT / "bench/results/cpu.jsonl").read_text(encoding="utf-8").splitlines())
    if "--check" not in sys.argv[1:]:
        path.write_text(expected, encoding="utf-8")
    elif readme != expected:
        print("README.md: the table of figures is out of date; tools/readme_figures.py writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
